"""Sets of times as sorted intervals that do not touch: their unions, differences and sums, in 16 bytes an interval."""

from __future__ import annotations

from array import array
from collections.abc import Iterator


class Intervals:
    """Intervals of time, in the unit of the trace; the operations below want them sorted and apart."""

    __slots__ = ("begins", "ends")

    def __init__(self, *pairs: tuple[float, float]) -> None:
        self.begins, self.ends = array("d"), array("d")
        for begin, end in pairs:
            self.add(begin, end)

    def __iter__(self) -> Iterator[tuple[float, float]]:
        return zip(self.begins, self.ends, strict=True)

    def __len__(self) -> int:
        return len(self.begins)

    def add(self, begin: float, end: float) -> None:
        """Append an interval; one that continues the last one makes it longer."""
        if end <= begin:
            return
        ends = self.ends
        if ends and self.begins[-1] <= begin <= ends[-1]:
            ends[-1] = max(ends[-1], end)
        else:
            self.begins.append(begin)
            ends.append(end)

    def total(self) -> float:
        """Return the sum of the lengths."""
        return sum(self.ends) - sum(self.begins) if len(self) < 2 else sum(end - begin for begin, end in self)


def union(*several: Intervals) -> Intervals:
    """Return what is in any of several sets, whose intervals may be in any order.

    >>> list(union(Intervals((4, 6)), Intervals((1, 2), (5, 8))))
    [(1.0, 2.0), (4.0, 8.0)]
    """
    begins, ends = array("d"), array("d")
    for each in several:
        begins.extend(each.begins)
        ends.extend(each.ends)
    result = Intervals()
    for index in sorted(range(len(begins)), key=begins.__getitem__):
        result.add(begins[index], ends[index])
    return result


def without(kept: Intervals, *removed: Intervals) -> Intervals:
    """Return a set without the times of others.

    >>> list(without(Intervals((0, 10)), Intervals((2, 3), (9, 12))))
    [(0.0, 2.0), (3.0, 9.0)]
    """
    for each in removed:
        kept = _difference(kept, each)
    return kept


def _difference(kept: Intervals, removed: Intervals) -> Intervals:
    result, index = Intervals(), 0
    for begin, end in kept:
        while index < len(removed) and removed.ends[index] <= begin:
            index += 1
        at, place = begin, index
        while place < len(removed) and removed.begins[place] < end:
            result.add(at, removed.begins[place])
            at = max(at, removed.ends[place])
            place += 1
        result.add(at, end)
    return result


def common(one: Intervals, other: Intervals) -> Intervals:
    """Return what two sets have in common.

    >>> list(common(Intervals((0, 4), (6, 9)), Intervals((3, 7))))
    [(3.0, 4.0), (6.0, 7.0)]
    """
    result, index = Intervals(), 0
    for begin, end in one:
        while index < len(other) and other.ends[index] <= begin:
            index += 1
        place = index
        while place < len(other) and other.begins[place] < end:
            result.add(max(begin, other.begins[place]), min(end, other.ends[place]))
            place += 1
    return result


def bridged(several: Intervals, longest: float) -> Intervals:
    """Return a set without its gaps that are not longer than `longest`.

    >>> list(bridged(Intervals((0, 1), (2, 3), (9, 10)), 2))
    [(0.0, 3.0), (9.0, 10.0)]
    """
    result = Intervals()
    for begin, end in several:
        if len(result) and begin - result.ends[-1] <= longest:
            begin = result.ends[-1]
        result.add(begin, end)
    return result
