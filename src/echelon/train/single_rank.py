"""Acts of a single rank, such as writing a file: in them no exchange may begin, for the other ranks do not come."""

from contextlib import contextmanager
from typing import Iterator, List

from .refusal import Refusal

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
        raise Refusal(
            "rank 0 alone does %s, and in it a part of a batch is asked for that other ranks have: they do not come"
            % _acts[-1],
            "compute before what is written: a number by .item(), a tensor by .cpu().numpy()",
        )
