"""Where the iterators of a script's loops are, read from them and put into those of a later process."""

import ctypes
import operator
import sys
from collections.abc import Iterator
from functools import cache
from types import GeneratorType
from typing import Any, NamedTuple

from .passes import Pass
from .value_stack import Unclear, loops_of

_EMPTY: Any = {}
_RANGE = type(iter(range(1)))
_LIST: Any = type(iter([]))
_TUPLE: Any = type(iter(()))
_KEPT = tuple(
    type(iter(one)) for one in (_EMPTY, _EMPTY.values(), _EMPTY.items(), {*_EMPTY}, "", b"", reversed([*_EMPTY]))
)
"""Iterators whose position can be compared, and not set."""
KEPT = "kept"
"""The kind of such an iterator."""
_TRIED = 123_456_789
_NO_COUNT = f"Python {sys.version.split()[0]} does not let the count of an enumerate() be set"


class IteratorPosition(NamedTuple):
    kind: str
    at: Any
    inner: tuple[Any, ...] = ()
    """What it iterates over."""


def is_iterator(value: object) -> bool:
    return isinstance(value, (_RANGE, _LIST, _TUPLE, *_KEPT, enumerate, zip))


def position_of(iterator: Any) -> IteratorPosition:
    if isinstance(iterator, _RANGE):
        left = _left(iterator)
        return IteratorPosition("range", [left.start, left.stop, left.step])
    if isinstance(iterator, (_LIST, _TUPLE)):
        parts: Any = iterator.__reduce__()
        (kept, *_), *index = parts[1:]
        return IteratorPosition("list" if isinstance(iterator, _LIST) else "tuple", index[0] if index else -1, (kept,))
    if isinstance(iterator, enumerate):
        if _offset_of_count() is None:
            raise Unclear(_NO_COUNT)
        counted: Any = iterator.__reduce__()
        return IteratorPosition("enumerate", counted[1][1], counted[1][:1])
    if isinstance(iterator, zip):
        zipped: Any = iterator.__reduce__()
        return IteratorPosition("zip", None, zipped[1])
    return IteratorPosition(KEPT, operator.length_hint(iterator))


def advance(before: IteratorPosition, now: IteratorPosition) -> Any:
    """Return how an iterator is brought from one position to a later one: for a range the number of steps.

    Raises Unclear where it cannot be.
    """
    if now.kind == "range":
        steps = len(range(*before.at)) - len(range(*now.at))
        if steps < 0 or range(*before.at)[steps:] != range(*now.at):
            raise Unclear("this loop has another range than at its first time")
        return steps
    if now.kind == KEPT and before.at != now.at:
        raise Unclear("the position of this iterator cannot be set")
    return now.at


def put_position(iterator: Any, kind: str, at: Any) -> None:
    """Bring an iterator to a later position, in the way that `advance` returned."""
    if kind == "range":
        left = _left(iterator)
        if at > len(left):
            raise Unclear(f"the loop has {len(left)} steps left, and the checkpoint is after {at} of them")
        is_relative = sys.version_info >= (3, 12)
        iterator.__setstate__(at if is_relative else iterator.__reduce__()[2] + at)
    elif kind in ("list", "tuple") and at >= 0:
        iterator.__setstate__(at)
    elif kind in ("list", "tuple"):
        for _ in iterator:
            pass
    elif kind == "enumerate":
        offset = _offset_of_count()
        if offset is None:
            raise Unclear(_NO_COUNT)
        ctypes.c_ssize_t.from_address(id(iterator) + offset).value = at


def reaches(iterator: Any, wanted: Pass) -> bool:
    if isinstance(iterator, GeneratorType):
        loops = loops_of(iterator.gi_frame) if iterator.gi_running and iterator.gi_frame is not None else []
        return any(reaches(one, wanted) for _, one in loops[-1:])
    if isinstance(iterator, (enumerate, zip)):
        return any(reaches(one, wanted) for one in position_of(iterator).inner)
    return iterator is wanted


def _left(iterator: Any) -> range:
    _, (whole,), *index = iterator.__reduce__()
    return whole[(index[0] if index else 0) or 0 :]  # type: ignore[no-any-return]


@cache
def _offset_of_count() -> int | None:
    """Try where an enumerate() keeps its count; None: not found."""
    trial: Iterator[Any] = enumerate("abc", _TRIED)
    if sys.implementation.name != "cpython":
        return None
    word = ctypes.sizeof(ctypes.c_ssize_t)
    for offset in range(object.__basicsize__, enumerate.__basicsize__, word):
        count = ctypes.c_ssize_t.from_address(id(trial) + offset)
        if count.value == _TRIED:
            count.value = _TRIED + 1
            return offset if next(trial) == (_TRIED + 1, "a") and next(trial) == (_TRIED + 2, "b") else None
    return None
