"""Acts of a single rank, such as writing a file: in them no exchange may begin, for the other ranks do not come."""

from contextlib import contextmanager
from typing import Iterator, List

from .scaling_error import ScalingError

_acts: List[str] = []


@contextmanager
def alone(what: str) -> Iterator[None]:
    """Do something that the other ranks do not do."""
    _acts.append(what)
    try:
        yield
    finally:
        _acts.pop()


def is_alone() -> bool:
    """Say whether this rank does something that the others do not do."""
    return bool(_acts)


def refuse_exchange() -> None:
    """Refuse to wait for ranks that do not come."""
    if _acts:
        raise ScalingError(
            "only rank 0 does %s, and it needs the parts of a batch that other ranks hold; the other ranks do "
            "not take part" % _acts[-1],
            "compute the value before you write it: a number by .item(), a tensor by .cpu().numpy()",
        )
