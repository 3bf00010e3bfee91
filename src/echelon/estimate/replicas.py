"""Add to a log what DistributedDataParallel holds, and divide optimizer states as ZeRO-1 does."""

from __future__ import annotations

from collections.abc import Sequence

from echelon.estimate.layout import share
from echelon.estimate.log import BACKWARD, OPTIMIZER, STEP, Event, EventLog, LoggedTensor
from echelon.estimate.places import OF_ELEMENTS, AllocationPlaces, state_owners
from echelon.estimate.timeline import last_step

BUCKET = 25 << 20
"""torch.nn.parallel.distributed._DEFAULT_BUCKET_CAP_MB."""
FIRST_BUCKET = 1 << 20
"""torch.distributed._DEFAULT_FIRST_BUCKET_BYTES: the gradients that are computed first."""


def bucket_sizes(gradients: list[int]) -> list[int]:
    """Return the sizes of DDP's buckets for gradients in the order in which they are computed."""
    buckets, held, most = list[int](), 0, FIRST_BUCKET
    for size in gradients:
        held += size
        if held >= most:
            buckets.append(held)
            held, most = 0, BUCKET
    return [*buckets, held] if held else buckets


def replicated(log: EventLog, *, has_views: bool) -> EventLog:
    """Return the log with DDP's buckets; with `gradient_as_bucket_view` gradients are views of them.

    Without it, which is PyTorch's default, a bucket is one more copy of its gradients from the first step on. With it a
    gradient is computed as a tensor of its own, copied into its bucket, and freed. Gradients of an accumulation are in
    no bucket until the last backward of the step, as under DDP.no_sync().
    """
    recording = _Recording(log, has_views)
    for position in range(len(log.events)):
        recording.take(position)
    return log.changed(tensors=recording.tensors, events=recording.events)


class _Recording:
    def __init__(self, log: EventLog, has_views: bool) -> None:
        self._has_views = has_views
        self.tensors = list(log.tensors)
        self.events: list[Event] = []
        self._old = log.events
        self._last = last_backwards(log.events)
        self._is_last = False
        self._waiting: list[int] = []
        begin = last_step(log.events)
        kept = [at for at in range(begin, len(log.events)) if is_kept(log.events, at, log.tensors)]
        self._buckets = bucket_sizes([log.tensors[log.events[at]].num_bytes for at in kept])  # type: ignore[index]

    def take(self, position: int) -> None:
        """Write the event at this position as DDP has it."""
        event = self._old[position]
        if type(event) is not int:
            self._border(event, position)
        elif not self._has_views or self.tensors[max(event, -event - 1)].category != "gradient":
            self.events.append(event)
        elif event >= 0:
            self._gradient(event, is_kept(self._old, position, self.tensors))

    def _border(self, event: Event, position: int) -> None:
        if event == STEP:
            self._is_last = False
            for size in self._buckets:
                self.events.append(len(self.tensors))
                self.tensors.append(LoggedTensor(size, "gradient", -1, False))
            self._buckets = []
        elif position in self._last:
            self._is_last = True
        elif event == OPTIMIZER:
            self.events += [-index - 1 for index in self._waiting]
            self._waiting = []
        self.events.append(event)

    def _gradient(self, event: int, is_kept: bool) -> None:
        self.events.append(event)
        if is_kept and not self._is_last:
            self._waiting.append(event)
            return
        self.events.append(-event - 1)
        if self._is_last and self._waiting:
            self.events.append(-self._waiting.pop(0) - 1)


def dealt(sizes: list[int], num_ranks: int) -> list[list[int]]:
    """Return the weights of each rank, as ZeroRedundancyOptimizer deals them: the largest first, to who has least."""
    parts: list[list[int]] = [[] for _ in range(num_ranks)]
    held = [0] * num_ranks
    for position in sorted(range(len(sizes)), key=lambda position: -sizes[position]):
        rank = held.index(min(held))
        parts[rank].append(position)
        held[rank] += sizes[position]
    return parts


def with_states_dealt(log: EventLog, num_ranks: int, where: AllocationPlaces) -> EventLog:
    """Return the log of the rank with the most optimizer states, which has whole states of some weights."""
    sizes = [weight.num_bytes for weight in log.weights]
    part = max(dealt(sizes, num_ranks), key=lambda part: sum(sizes[position] for position in part))
    mine, owners = set(part), state_owners(log)
    held, whole = sum(sizes[position] for position in part), max(1, sum(sizes))
    tensors = list(log.tensors)
    for index, tensor in enumerate(tensors):
        if tensor.category == "state" and tensor.num_bytes > OF_ELEMENTS:
            owner = owners.get(index, -1)
            if owner < 0:
                tensors[index] = tensor._replace(num_bytes=share(tensor.num_bytes, num_ranks))
            elif owner not in mine:
                tensors[index] = tensor._replace(num_bytes=0)
        elif is_of_optimizer(index, tensor, where):
            tensors[index] = tensor._replace(num_bytes=-(-tensor.num_bytes * held // whole))
    return log.changed(tensors=tensors)


def is_of_optimizer(index: int, tensor: LoggedTensor, where: AllocationPlaces) -> bool:
    """Say whether a tensor is a temporary of the optimizer, whose size is that of weights."""
    if index >= len(where.phases) or tensor.category != "temporary" or tensor.num_bytes <= OF_ELEMENTS:
        return False
    return where.phases[index] == "optimizer"


def last_backwards(events: Sequence[Event]) -> set[int]:
    """Return the position at which the last backward of each step begins."""
    last: dict[int, int] = {}
    step = 0
    for position, event in enumerate(events):
        if event == STEP:
            step += 1
        elif event == BACKWARD:
            last[step] = position
    return set(last.values())


def is_kept(events: Sequence[Event], position: int, tensors: Sequence[LoggedTensor]) -> bool:
    """Say whether an event allocates a gradient that is not freed at once."""
    event = events[position]
    if type(event) is not int or event < 0 or tensors[event].category != "gradient":
        return False
    return position + 1 == len(events) or events[position + 1] != -event - 1
