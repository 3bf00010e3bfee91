"""Keep of each block's forward only the output, and compute the rest again in its backward."""

from __future__ import annotations

from collections import defaultdict

from echelon.estimate.log import BACKWARD, ENTER, ENTER_BACKWARD, LEAVE, STEP, Event, EventLog
from echelon.estimate.places import Places


def checkpointed(log: EventLog, where: Places) -> EventLog:
    """Return the log as torch.utils.checkpoint of each block would leave it."""
    recording = _Recording(log, where)
    for event in log.events:
        recording.take(event)
    return log.changed(tensors=recording.tensors, events=recording.events)


class _Recording:
    """Copies a log, and changes it at the borders of blocks."""

    def __init__(self, log: EventLog, where: Places) -> None:
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
            self._is_forward = event == STEP or (self._is_forward and event != BACKWARD)
            self._block = -1
        elif isinstance(event, tuple) and event[0] == ENTER and self._is_forward and self._block < 0:
            self._block, self._open = event[1], []
        elif event == (LEAVE, self._block):
            self._forget()
        self.events.append(event)
        if isinstance(event, tuple) and event[0] == ENTER_BACKWARD and self._saved[event[1]]:
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
    """Return the tensors that backward frees."""
    freed, is_backward = set(), False
    for event in log.events:
        if isinstance(event, str):
            is_backward = event == BACKWARD
        elif type(event) is int and event < 0 and is_backward:
            freed.add(-event - 1)
    return freed
