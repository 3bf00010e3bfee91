"""Count the bytes that a rank sends in a step, with the algorithms whose messages go around a ring."""

from __future__ import annotations

from dataclasses import dataclass

from echelon.estimate.layout import ALWAYS, NEVER, POLICY, Layout
from echelon.estimate.log import EventLog
from echelon.estimate.places import Places


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


def messages(log: EventLog, layout: Layout, where: Places) -> tuple[Message, ...]:
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
