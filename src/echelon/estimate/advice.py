"""Say what to change first in a training, and what it saves: each change is made in the log and replayed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from echelon.errors import UsageError
from echelon.estimate.layout import ALWAYS, NEVER, Layout, share
from echelon.estimate.log import EventLog
from echelon.estimate.places import of_loss
from echelon.estimate.verdict import NAMES, FitVerdict, judge
from echelon.hardware import vendors
from echelon.units import size

MOST = 3
CHUNKS = 8
LEAST_SHARE = 0.02
"""Smaller savings are no advice."""


class Advice(NamedTuple):
    """One change, and the bytes that it saves of what the training needs at most."""

    change: str
    why: str
    saved_bytes: int
    before: FitVerdict
    verdict: FitVerdict
    """The judgement with the change."""

    @property
    def text(self) -> str:
        is_other = self.verdict.predicate != self.before.predicate
        then = f", and then it {self.verdict.predicate}" if is_other else ""
        return f"{self.why}: {self.change} saves {size(self.saved_bytes)}{then}"


def advice(log: EventLog, verdict: FitVerdict) -> tuple[Advice, ...]:
    """Return at most three changes that save the most, the largest first."""
    changes = []
    for change in _changes(log, verdict):
        try:
            judged = judge(change.log, change.layout, verdict.device, expandable=change.expandable)
        except UsageError:
            continue  # too few rows or blocks for this change
        saved = verdict.high_bytes - judged.high_bytes
        if saved >= LEAST_SHARE * verdict.high_bytes:
            changes.append(Advice(change.text, change.why, saved, verdict, judged))
    return tuple(sorted(changes, key=lambda each: -each.saved_bytes)[:MOST])


class _Change(NamedTuple):
    text: str
    why: str
    log: EventLog
    layout: Layout
    expandable: bool = False


def _changes(log: EventLog, verdict: FitVerdict) -> Iterator[_Change]:
    layout = verdict.layout
    logits = scaled(most_of_loss(log), log, layout)
    part = logits / max(1, verdict.memory.peak.num_bytes)
    if part > LEAST_SHARE:
        why = f"logits and what the loss makes of them take {size(logits)}, {_percent(min(part, 1))} of the peak"
        yield _Change(f"a loss that computes its logits in {CHUNKS} chunks", why, with_chunked_loss(log), layout)
    if not layout.checkpointing and log.blocks:
        why = _share(verdict, "activation")
        yield _Change("recomputing activations (checkpointing)", why, log, layout.changed(checkpointing=True))
    if layout.optimizer != "adam8bit":
        yield _Change("8-bit Adam", _share(verdict, "state"), log, layout.changed(optimizer="adam8bit"))
    if layout.precision != "bf16":
        why = _share(verdict, next(iter(verdict.memory.peak.parts), "parameter"))
        yield _Change("model.bfloat16(), which rounds all numbers,", why, log, layout.changed(precision="bf16"))
    if layout.pipeline == 1:
        twice = layout.changed(accumulation=2 * layout.accumulation)
        yield _Change(f"accumulation {twice.accumulation}", _share(verdict, "activation"), log, twice)
    yield from _of_ranks(log, verdict)


def _of_ranks(log: EventLog, verdict: FitVerdict) -> Iterator[_Change]:
    layout, memory = verdict.layout, verdict.memory
    if layout.num_data > 1 and (layout.shard == 1 or layout.reshard == NEVER):
        kept = sum(memory.peak.parts.get(name, 0) for name in ("parameter", "gradient", "state"))
        why = f"weights, gradients and states are {_percent(kept / max(1, memory.peak.num_bytes))} of the peak"
        sharded = layout.changed(replicate=1, shard=layout.num_data, reshard=ALWAYS)
        yield _Change("FSDP (--scale fsdp)", why, log, sharded)
    if vendors.named(verdict.device.family).can_expand_segments:
        times = memory.reserved_bytes / max(1, memory.allocated_bytes)
        why = f"the allocator reserves {times:.2f} times what it allocates"
        yield _Change("PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True", why, log, layout, True)


def _share(verdict: FitVerdict, category: str) -> str:
    part = verdict.memory.peak.parts.get(category, 0) / max(1, verdict.memory.peak.num_bytes)
    return f"{NAMES[category]} are {_percent(part)} of the peak"


def _percent(part: float) -> str:
    return f"{100 * part:.0f} %"


def scaled(num_bytes: int, log: EventLog, layout: Layout) -> int:
    """Return the bytes of one micro-batch of a layout for those of the traced batch."""
    return num_bytes * layout.rows_of_micro_batch(log.rows) // log.rows if log.rows else num_bytes


def most_of_loss(log: EventLog) -> int:
    """Return the most bytes of logits and loss that are live at once."""
    tensors, live, most = of_loss(log), 0, 0
    for event in log.events:
        if type(event) is int:
            index = event if event >= 0 else -event - 1
            if index in tensors:
                live += log.tensors[index].num_bytes if event >= 0 else -log.tensors[index].num_bytes
                most = max(most, live)
    return most


def with_chunked_loss(log: EventLog) -> EventLog:
    """Return the log of a loss that computes logits, their loss and gradient chunk by chunk."""
    tensors = list(log.tensors)
    for index in of_loss(log):
        tensors[index] = tensors[index]._replace(num_bytes=share(tensors[index].num_bytes, CHUNKS))
    return log.changed(tensors=tensors)
