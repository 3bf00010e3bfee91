"""Turn the log of one device into that of one rank of a strategy, and count what this rank takes."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import NamedTuple

from echelon.estimate import replicas, schedule, sharding, sizes, stages, timeline
from echelon.estimate.allocator import replay
from echelon.estimate.layout import ALWAYS, NEVER, POLICY, Layout, share
from echelon.estimate.log import EventLog
from echelon.estimate.places import AllocationPlaces, places
from echelon.estimate.timeline import Peak


@dataclass(frozen=True, slots=True, kw_only=True)
class RankMemory:
    """What the fullest rank of a layout takes, in bytes."""

    layout: Layout
    peak: Peak
    """The live tensors at their peak, and their parts."""
    allocated_bytes: int
    """The same in blocks of the allocator, as torch.cuda.max_memory_allocated."""
    reserved_bytes: int
    """What the allocator takes from the device, as torch.cuda.max_memory_reserved."""
    host_bytes: int
    """What lies in the host's memory: sharded weights, gradients and states of an offload."""
    messages: tuple[Message, ...]
    """The communication of a step."""
    notes: tuple[str, ...]

    @property
    def sent_bytes(self) -> int:
        return sum(message.sent_bytes for message in self.messages)


def rank_log(log: EventLog, layout: Layout, *, place: int = 0) -> EventLog:
    """Return the log of the rank at this place of the pipeline; 0 without one."""
    return _rank(timeline.without(log), layout, place).log


def memory(
    log: EventLog,
    layout: Layout,
    *,
    expandable: bool = False,
    before: tuple[int, ...] = (),
    has_workspaces: bool = False,
) -> RankMemory:
    """Return what the fullest rank takes; `before` are the sizes that libraries take from the allocator first.

    With `has_workspaces` each convolution takes the most that its library may take.
    """
    with _without_collection():
        return _fullest(log if has_workspaces else timeline.without(log), layout, expandable, before)


@contextmanager
def _without_collection() -> Iterator[None]:
    """Keep Python from looking for circles among hundreds of thousands of values: it takes half of the time."""
    is_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if is_on:
            gc.enable()


def _fullest(log: EventLog, layout: Layout, expandable: bool, before: tuple[int, ...]) -> RankMemory:
    fullest: RankMemory | None = None
    for place in sorted({0, layout.pipeline - 1}):
        rank = _rank(log, layout, place)
        replayed = replay(rank.log, expandable=expandable, before=before)
        taken = RankMemory(
            layout=layout,
            peak=timeline.peak(rank.log),
            allocated_bytes=replayed.allocated_bytes,
            reserved_bytes=replayed.reserved_bytes,
            host_bytes=rank.host_bytes,
            messages=rank.messages,
            notes=_notes(log, layout),
        )
        if fullest is None or _fullness(taken) > _fullness(fullest):
            fullest = taken
    return fullest  # type: ignore[return-value]


def _fullness(taken: RankMemory) -> tuple[int, int]:
    return taken.reserved_bytes, taken.peak.num_bytes


class _Rank(NamedTuple):
    log: EventLog
    messages: tuple[Message, ...]
    host_bytes: int


def _rank(log: EventLog, layout: Layout, place: int) -> _Rank:
    where = places(log)
    rank = sizes.resized(log, layout, where)
    if layout.pipeline > 1:
        rank = stages.stage(rank, stages.cut(rank, layout.pipeline)[place], layout.accumulation)
    sent, host_bytes = messages(rank, layout, where), _host_bytes(rank, layout)
    if layout.checkpointing:
        rank = schedule.checkpointed(rank, where)
    if layout.pipeline > 1:
        turns = schedule.one_forward_one_backward(layout.pipeline, place, layout.accumulation)
        rank = schedule.repeated(rank, turns)
    elif layout.accumulation > 1:
        rank = schedule.repeated(rank, schedule.accumulation(layout.accumulation))
    if layout.is_fully_sharded:
        return _Rank(sharding.sharded(rank, layout, where), sent, host_bytes)
    if layout.num_data > 1:
        rank = replicas.replicated(rank, has_views=layout.has_bucket_views)
    if layout.shard > 1 and layout.reshard == NEVER:
        rank = replicas.with_states_dealt(rank, layout.shard, where)
    return _Rank(rank, sent, host_bytes)


def _host_bytes(rank: EventLog, layout: Layout) -> int:
    """Return the shards of weights, gradients and states that an offload keeps in the host's memory."""
    if not layout.offload:
        return 0
    weights = sum(weight.num_bytes for weight in rank.weights)
    states = sum(tensor.num_bytes for tensor in rank.tensors if tensor.category == "state")
    return share(2 * weights + states, layout.shard)


def _notes(log: EventLog, layout: Layout) -> tuple[str, ...]:
    notes = list(log.notes)
    if not log.rows and layout.num_data * layout.accumulation > 1:
        notes.append("the rows of a batch are unknown: each rank is counted with the whole traced batch")
    if layout.is_fully_sharded and not any(weight.length for weight in log.weights):
        notes.append("the shapes of weights are unknown: the padding of shards is counted to elements, not to rows")
    if layout.pipeline > 1:
        notes.append("the first and the last stage are counted; others hold less unless their blocks are larger")
    return tuple(notes)


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """All messages of one kind in a step."""

    operation: str
    axis: str
    num_bytes: int
    """The bytes that the operation is about: gradients for an all-reduce, whole weights for an all-gather."""
    num_ranks: int

    @property
    def sent_bytes(self) -> int:
        """What a rank sends: around a ring of n ranks each sends (n-1)/n of the bytes, in an all-reduce twice."""
        if self.operation == "send":
            return self.num_bytes
        turns = 2 if self.operation == "all-reduce" else 1
        return turns * self.num_bytes * (self.num_ranks - 1) // self.num_ranks


def messages(log: EventLog, layout: Layout, where: AllocationPlaces) -> tuple[Message, ...]:
    """Return the messages of a step of one rank; `log` has the rank's weights and micro-batch, before sharding."""
    weights = sum(weight.num_bytes for weight in log.weights)
    blocks = sum(weight.num_bytes for weight in log.weights if weight.block >= 0)
    sent: list[Message] = []

    def add(operation: str, axis: str, num_bytes: int, num_ranks: int) -> None:
        if num_bytes and num_ranks > 1:
            sent.append(Message(operation=operation, axis=axis, num_bytes=num_bytes, num_ranks=num_ranks))

    if layout.shard > 1 and layout.reshard == NEVER:
        add("all-reduce", "shard", weights, layout.num_data)
        add("broadcast", "shard", weights, layout.shard)
    elif layout.shard > 1:
        again = blocks if layout.reshard == ALWAYS else 0
        gathered = (weights + again) * layout.accumulation
        add("all-gather", "shard", gathered // 2 if layout.precision == POLICY else gathered, layout.shard)
        add("reduce-scatter", "shard", weights, layout.shard)
        add("all-reduce", "replicate", weights // layout.shard, layout.replicate)
    else:
        add("all-reduce", "replicate", weights, layout.replicate)
    output = max((log.tensors[tensor].num_bytes for tensor in where.outputs), default=0)
    add("all-reduce", "tensor", 4 * len(log.blocks) * output * layout.accumulation, layout.tensor)
    add("send", "pipeline", 2 * output * layout.accumulation, layout.pipeline)
    return tuple(sent)
