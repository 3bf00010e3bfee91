"""Acts of a single rank, such as writing a file: they may begin no exchange, because other ranks do not take part."""

from contextlib import contextmanager
from typing import Iterator, List

from .scaling_error import ScalingError

_acts: List[str] = []


@contextmanager
def alone(act: str) -> Iterator[None]:
    """Mark a block as an act that other ranks do not perform."""
    _acts.append(act)
    try:
        yield
    finally:
        _acts.pop()


def is_alone() -> bool:
    """Say whether this rank is in an act that other ranks do not perform."""
    return bool(_acts)


def refuse_exchange() -> None:
    """Refuse an exchange with ranks that do not take part."""
    if _acts:
        raise ScalingError(
            "only rank 0 does %s, and it needs the parts of a batch that other ranks hold; the other ranks do "
            "not take part" % _acts[-1],
            "compute the value before you write it: a number by .item(), a tensor by .cpu().numpy()",
        )
