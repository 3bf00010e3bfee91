"""Repeat forward and backward for micro-batches, and compute a block again in its backward."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import TypeAlias

from echelon.estimate import log as borders
from echelon.estimate.log import Event, EventLog, LoggedTensor
from echelon.estimate.places import AllocationPlaces
from echelon.estimate.timeline import last_step

MOST_REPEATED = 3
"""Micro-batches of an accumulation that are replayed: the third finds what the second found, and so do all others."""

Turn: TypeAlias = "tuple[bool, int]"
"""Whether it is a forward, and of which micro-batch."""


def accumulation(num_parts: int) -> list[Turn]:
    """Return the order of an accumulation: each micro-batch's forward, then its backward."""
    return [(is_forward, part) for part in range(min(num_parts, MOST_REPEATED)) for is_forward in (True, False)]


def one_forward_one_backward(num_stages: int, place: int, num_parts: int) -> list[Turn]:
    """Return the order of a stage of a 1F1B pipeline, until each kind of turn has been."""
    ahead = min(num_stages - place, num_parts)
    total = min(num_parts, ahead + 1)
    turns = [(True, part) for part in range(ahead)]
    for part in range(total):
        turns.append((False, part))
        if ahead + part < total:
            turns.append((True, ahead + part))
    return turns


def repeated(log: EventLog, turns: Sequence[Turn]) -> EventLog:
    """Return the log whose last step takes these turns."""
    if len(turns) == 2:
        return log
    begin = last_step(log.events)
    rest = list(log.events[begin + 1 :])
    backward = rest.index(borders.BACKWARD)
    end = max(position for position, event in enumerate(rest) if event == borders.OPTIMIZER)
    parts = _MicroBatches(log, rest[:backward], rest[backward + 1 : end], turns)
    events: list[Event] = [*log.events[: begin + 1], *parts.events(), *rest[end:]]
    return log.changed(tensors=parts.tensors, events=events)


class _MicroBatches:
    """Writes the events of each turn, with copies of the tensors of all micro-batches but the last."""

    def __init__(self, log: EventLog, forward: list[Event], backward: list[Event], turns: Sequence[Turn]) -> None:
        self.tensors: list[LoggedTensor] = list(log.tensors)
        self._regions = {True: forward, False: backward}
        self._turns = turns
        self._num_parts = 1 + max(part for _, part in turns)
        numbers = [event for event in (*forward, *backward) if type(event) is int]
        own = {event for event in numbers if event >= 0}
        freed = {-event - 1 for event in numbers if event < 0}
        self._own = own
        survivors = [index for index in sorted(own - freed) if log.tensors[index].category != "gradient"]
        former = [index for index in sorted(freed - own) if log.tensors[index].category != "gradient"]
        is_paired = len(survivors) == len(former)
        self._follows = dict(zip(former, survivors, strict=True)) if is_paired else {}
        self._survivors = set(survivors)
        self._copies: dict[tuple[int, int], int] = {}
        self._live: set[int] = set()

    def events(self) -> Iterator[Event]:
        is_first = {True: True, False: True}
        for turn, (is_forward, part) in enumerate(self._turns):
            if turn:
                yield borders.FORWARD if is_forward else borders.BACKWARD
            elif not is_forward:
                yield borders.BACKWARD
            for event in self._regions[is_forward]:
                yield from self._one(event, part, is_first[is_forward])
            is_first[is_forward] = False
            if not is_forward and part < self._num_parts - 1 and not self._follows:
                yield from self._dropped(part)
        for part in range(self._num_parts - 1):
            yield from self._dropped(part)

    def _one(self, event: Event, part: int, is_first: bool) -> Iterator[Event]:
        if type(event) is not int:
            yield event
        elif event >= 0:
            yield from self._allocated(event, part, is_first)
        elif -event - 1 in self._own:
            if self.tensors[-event - 1].category == "gradient" and not is_first:
                return
            copy = self._copy(-event - 1, part)
            self._live.discard(copy)
            yield -copy - 1
        elif is_first and part == 0:
            yield event
        elif -event - 1 in self._follows:
            copy = self._copy(self._follows[-event - 1], part - 1)
            if copy in self._live:
                self._live.discard(copy)
                yield -copy - 1

    def _allocated(self, index: int, part: int, is_first: bool) -> Iterator[Event]:
        if self.tensors[index].category == "gradient" and not is_first:
            self.tensors.append(self.tensors[index])  # added to the gradient of earlier micro-batches, and freed
            yield from (len(self.tensors) - 1, -len(self.tensors))
            return
        copy = self._copy(index, part)
        self._live.add(copy)
        yield copy

    def _copy(self, index: int, part: int) -> int:
        if part == self._num_parts - 1 or self.tensors[index].category == "gradient":
            return index
        if (index, part) not in self._copies:
            self._copies[index, part] = len(self.tensors)
            self.tensors.append(self.tensors[index])
        return self._copies[index, part]

    def _dropped(self, part: int) -> Iterator[Event]:
        """Free what outlives a micro-batch if the log does not tell when the next one replaces it."""
        for index in sorted(self._survivors):
            copy = self._copy(index, part)
            if copy in self._live:
                self._live.discard(copy)
                yield -copy - 1


def checkpointed(log: EventLog, where: AllocationPlaces) -> EventLog:
    """Return the log as torch.utils.checkpoint of each block would leave it."""
    recording = _Recording(log, where)
    for event in log.events:
        recording.take(event)
    return log.changed(tensors=recording.tensors, events=recording.events)


class _Recording:
    """Copies a log, and changes it at the borders of blocks."""

    def __init__(self, log: EventLog, where: AllocationPlaces) -> None:
        self.tensors = list(log.tensors)
        self.events: list[Event] = []
        self._outputs = where.outputs
        self._in_backward = _freed_in_backward(log)
        self._is_forward = False
        self._open: list[int] = []  # allocations and freeings of the block's forward so far
        self._block = -1
        self._saved: dict[int, list[list[int]]] = defaultdict(list)
        self._again: dict[int, int] = {}  # tensor: its copy in backward

    def take(self, event: Event) -> None:
        """Write an event, and what a border adds."""
        if type(event) is int:
            self._tensor(event)
            return
        if isinstance(event, str):
            self._is_forward = event == borders.STEP or (self._is_forward and event != borders.BACKWARD)
            self._block = -1
        elif isinstance(event, tuple) and event[0] == borders.ENTER and self._is_forward and self._block < 0:
            self._block, self._open = event[1], []
        elif event == (borders.LEAVE, self._block):
            self._forget()
        self.events.append(event)
        if isinstance(event, tuple) and event[0] == borders.ENTER_BACKWARD and self._saved[event[1]]:
            self._compute_again(self._saved[event[1]].pop())

    def _tensor(self, event: int) -> None:
        if self._block >= 0:
            self._open.append(event)
        if event < 0:
            copy = self._again.pop(-event - 1, None)
            event = event if copy is None else -copy - 1
        self.events.append(event)

    def _forget(self) -> None:
        """Free at the end of a block what only backward needs."""
        freed = {-event - 1 for event in self._open if event < 0}
        kept = [event for event in self._open if event >= 0 and event not in freed]
        lost = [index for index in kept if index in self._in_backward and index not in self._outputs]
        self.events += [-index - 1 for index in lost]
        inner = freed.union(lost)
        repeated = [event for event in self._open if (event if event >= 0 else -event - 1) in inner]
        self._saved[self._block].append(repeated)
        self._block = -1

    def _compute_again(self, forward: list[int]) -> None:
        """Allocate and free again what the forward did; what it kept now has a copy, which backward frees."""
        copies: dict[int, int] = {}
        for event in forward:
            if event >= 0:
                copies[event] = len(self.tensors)
                self.tensors.append(self.tensors[event])
                self.events.append(copies[event])
            elif -event - 1 in copies:
                self.events.append(-copies.pop(-event - 1) - 1)
        self._again.update(copies)


def _freed_in_backward(log: EventLog) -> set[int]:
    freed, is_backward = set(), False
    for event in log.events:
        if isinstance(event, str):
            is_backward = event == borders.BACKWARD
        elif type(event) is int and event < 0 and is_backward:
            freed.add(-event - 1)
    return freed
