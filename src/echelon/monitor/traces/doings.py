"""What the threads of the CPU did at each time, and what launched the work of the devices."""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence

from echelon.monitor.traces import kinds
from echelon.monitor.traces.reading import NO_LINK, DeviceTimeline, HostTimeline

Stack = list[tuple[float, int]]


class Doings:
    """The times of each kind on each thread: at each time the innermost event counts."""

    def __init__(self, host: HostTimeline, num_threads: int) -> None:
        self.times = [[Intervals() for _ in range(kinds.INPUT + 1)] for _ in range(num_threads)]
        """Of each thread, the times of each kind."""
        self.kinds = array("b", bytes(len(host)))
        """What each event of the host is inside of the events that surround it."""
        by_thread = [array("L") for _ in range(num_threads)]
        for index, thread in enumerate(host.threads):
            by_thread[thread].append(index)
        for thread, indices in enumerate(by_thread):
            # an event that begins with another one and is longer surrounds it
            order = sorted(indices, key=host.ends.__getitem__, reverse=True)
            order.sort(key=host.begins.__getitem__)
            self._sweep(host, order, self.times[thread])

    def _sweep(self, host: HostTimeline, order: Sequence[int], times: list[Intervals]) -> None:
        stack: Stack = []
        at = 0.0
        for index in order:
            begin, end = host.begins[index], host.ends[index]
            at = _leave(stack, at, begin, times)
            outer = kinds.OUTSIDE
            if stack:
                outer_end, outer = stack[-1]
                times[outer].add(at, begin)
                end = min(end, outer_end)
            kind = self.kinds[index] = kinds.inside(outer, host.kinds[index])
            stack.append((end, kind))
            at = begin
        _leave(stack, at, float("inf"), times)

    def of(self, kind: int, threads: Sequence[int] | None = None) -> list[Intervals]:
        """Return the times of a kind on some threads, or on all."""
        chosen = range(len(self.times)) if threads is None else threads
        return [self.times[thread][kind] for thread in chosen]


def _leave(stack: Stack, at: float, until: float, times: list[Intervals]) -> float:
    """Leave the events that end before a time; return up to where the thread is accounted for."""
    while stack and stack[-1][0] <= until:
        end, kind = stack.pop()
        times[kind].add(at, end)
        at = max(at, end)
    return at


class Launches:
    """For each event of a device, what launched it: the call with its correlation, else the operation with its id."""

    def __init__(self, host: HostTimeline, device: DeviceTimeline, doings: Doings) -> None:
        self.kinds = array("b", bytes(len(device)))
        """OUTSIDE where nothing says what launched it."""
        self.times = array("d", device.begins)
        """When it was launched; where nothing says it, when it began."""
        self.threads: set[int] = set()
        """The threads that launched work of devices."""
        calls = {link: index for index, link in enumerate(host.links) if host.kinds[index] == kinds.CALL}
        calls.pop(NO_LINK, None)
        left = [
            index for index in range(len(device)) if not self._take(index, calls, device.correlations, host, doings)
        ]
        del calls
        wanted = {device.external_ids[index] for index in left} - {NO_LINK}
        operations = {
            link: index for index, link in enumerate(host.links) if link in wanted and host.kinds[index] != kinds.CALL
        }
        for index in left:
            self._take(index, operations, device.external_ids, host, doings)
        for index, is_collective in enumerate(device.says_collective):
            if is_collective and self.kinds[index] == kinds.OUTSIDE:
                self.kinds[index] = kinds.COLLECTIVE

    def _take(self, index: int, found: dict[int, int], links: array[int], host: HostTimeline, doings: Doings) -> bool:
        launch = found.get(links[index])
        if launch is None:
            return False
        self.kinds[index] = doings.kinds[launch]
        self.times[index] = host.begins[launch]
        self.threads.add(host.threads[launch])
        return True


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
