"""Choose the simplest strategy that fits with a margin, among all, or among those of `--scale`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from echelon.errors import UsageError
from echelon.estimate.devices import Device
from echelon.estimate.layout import AFTER_BACKWARD, ALWAYS, NEVER, POLICY, Layout
from echelon.estimate.log import EventLog
from echelon.estimate.places import is_matrix
from echelon.estimate.verdict import FitVerdict, judge
from echelon.orders.scale import KINDS, MODEL_PARALLEL
from echelon.units import size

MARGIN = 0.05
"""The share of a device that has to stay free: batches of other shapes, and what no log shows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """A strategy, and the simpler ones that were refused."""

    chosen: FitVerdict | None
    """None: no strategy fits."""
    refused: tuple[FitVerdict, ...]
    """The strategies that were tried before the chosen strategy; all strategies if none fits."""
    margin: float

    @property
    def simpler(self) -> FitVerdict | None:
        """The last one before the chosen one: what the next simpler strategy would take."""
        return self.refused[-1] if self.refused else None

    @property
    def why(self) -> str:
        if self.chosen is None:
            least = min(self.refused, key=lambda verdict: verdict.high_bytes)
            memory = size(least.device.memory_bytes)
            return f"no strategy fits: {least.layout.name} needs least, {size(least.high_bytes)} of {memory}"
        text = f"{self.chosen.layout.name} takes at most {size(self.chosen.high_bytes)}"
        text += f" of {size(self.chosen.device.memory_bytes)}"
        if self.simpler is not None:
            text += f"; {self.simpler.layout.name} would take {size(self.simpler.high_bytes)}"
        return text


def candidates(num_ranks: int, ranks_per_node: int, *, rows: int = 0) -> list[Layout]:
    """Return the strategies for a number of ranks: the simple ones first, then the others by what they send."""
    if num_ranks == 1:
        return [Layout(rows=rows), Layout(checkpointing=True, rows=rows)]
    layouts = [
        Layout(replicate=num_ranks),
        Layout(shard=num_ranks, reshard=NEVER),
        Layout(shard=num_ranks, reshard=AFTER_BACKWARD),
    ]
    if ranks_per_node < num_ranks and num_ranks % ranks_per_node == 0 and ranks_per_node > 1:
        layouts.append(Layout(replicate=num_ranks // ranks_per_node, shard=ranks_per_node))
    layouts.append(Layout(shard=num_ranks))
    layouts += [layout.changed(checkpointing=True) for layout in layouts]
    layouts.append(Layout(shard=num_ranks, checkpointing=True, offload=True))
    return [layout.changed(rows=rows) for layout in layouts]


def choose(
    log: EventLog,
    device: Device,
    num_ranks: int,
    *,
    ranks_per_node: int = 8,
    node_bytes: int = 0,
    rows: int = 0,
    margin: float = MARGIN,
) -> Choice:
    """Try strategies from the simplest on, until one fits; `node_bytes` is the host's memory (0: unknown).

    UsageError if the batch of `rows` rows (0: as traced) has less than one row a rank.
    """
    refused: list[FitVerdict] = []
    for layout in _possible(log, candidates(num_ranks, ranks_per_node, rows=rows)):
        verdict = judge(log, layout, device)
        host = verdict.memory.host_bytes * min(ranks_per_node, num_ranks)
        has_host = not layout.offload or 0 < host <= (1 - margin) * node_bytes
        if has_host and verdict.fits_with(margin):
            return Choice(chosen=verdict, refused=tuple(refused), margin=margin)
        refused.append(verdict)
    return Choice(chosen=None, refused=tuple(refused), margin=margin)


def _possible(log: EventLog, layouts: Sequence[Layout]) -> list[Layout]:
    """Leave out what a model without blocks cannot have; raise UsageError if the batch has too few rows."""
    if log.rows:
        layouts[0].rows_of_micro_batch(log.rows)
    return [layout for layout in layouts if log.blocks or not layout.checkpointing]


_OF_AXIS = {kind.axis: name for name, kind in KINDS.items() if kind.axis}


def how(layout: Layout) -> str:
    """Return the value of --scale that trains in this layout; empty if only a script can ask for it.

    >>> how(Layout(shard=8))
    'fsdp'
    """
    used = [axis for axis in _OF_AXIS if getattr(layout, axis) > 1]
    is_plain = not (layout.checkpointing or layout.offload or layout.reshard != ALWAYS or layout.precision == POLICY)
    return _OF_AXIS[used[0]] if len(used) == 1 and is_plain else ""


def layouts(log: EventLog, num_ranks: int, ranks_per_node: int, *, rows: int = 0) -> list[Layout]:
    """Return the layouts of --scale that this model and this batch can have: data first, then fsdp, then the others.

    On one rank, it is the script as it is. `rows` are those of the batch of all ranks; 0: as traced.
    """
    if num_ranks == 1:
        return [Layout(rows=rows)]
    possible = [Layout(replicate=num_ranks, rows=rows), Layout(shard=num_ranks, rows=rows)]
    if log.blocks and num_ranks <= ranks_per_node and any(is_matrix(weight.name) for weight in log.weights):
        possible.append(Layout(tensor=num_ranks, rows=rows))
    if len(log.blocks) >= num_ranks:
        possible.append(Layout(pipeline=num_ranks, accumulation=num_ranks, rows=rows))
    return [layout for layout in possible if layout.has_rows(log.rows)]


def choose_scaled(log: EventLog, device: Device, tried: list[Layout], *, margin: float = MARGIN) -> Choice:
    """Take the first layout that fits with a margin; of those that split the model, the one that sends least is first.

    UsageError if no layout is left to try: the batch has less than one row a rank.
    """
    if not tried:
        raise UsageError(
            f"a batch of {log.rows} rows has less than one row for each rank", hint="fewer ranks, or a larger batch"
        )
    verdicts: list[FitVerdict] = []
    simple = [layout for layout in tried if how(layout) not in MODEL_PARALLEL]
    for layout in simple:
        verdicts.append(judge(log, layout, device))
        if verdicts[-1].fits_with(margin):
            return Choice(chosen=verdicts[-1], refused=tuple(verdicts[:-1]), margin=margin)
    splits = [judge(log, layout, device) for layout in tried if layout not in simple]
    for verdict in sorted(splits, key=lambda verdict: verdict.memory.sent_bytes):
        verdicts.append(verdict)
        if verdict.fits_with(margin):
            return Choice(chosen=verdict, refused=tuple(verdicts[:-1]), margin=margin)
    return Choice(chosen=None, refused=tuple(verdicts), margin=margin)


ACCUMULATION = 4
LEAST_TENSOR = 2
"""The tensor axis beside another axis, where all ranks are on one node."""


def of_one_device(log: EventLog, *, rows: int = 0) -> list[Layout]:
    """Return the script as it is, and with one change each."""
    changes: list[dict[str, object]] = [{}]
    if log.blocks:
        changes.append({"checkpointing": True})
    changes.append({"precision": "bf16"})
    if any(tensor.category == "state" for tensor in log.tensors):
        changes.append({"optimizer": "adam8bit"})
    if (rows or log.rows) >= ACCUMULATION:
        changes.append({"accumulation": ACCUMULATION})
    return [Layout(rows=rows).changed(**change) for change in changes]


def of_several(log: EventLog, num_ranks: int, ranks_per_node: int, *, rows: int = 0) -> list[Layout]:
    """Return every strategy that this model and this batch can have on so many ranks."""
    if num_ranks == 1:
        return []
    layouts = [layout for layout in candidates(num_ranks, ranks_per_node, rows=rows) if not layout.offload]
    layouts = [layout for layout in layouts if log.blocks or not layout.checkpointing]
    if log.half != "weights":
        layouts.append(Layout(shard=num_ranks, precision=POLICY, rows=rows))
    layouts += _across_models(log, num_ranks, min(num_ranks, ranks_per_node), rows)
    layouts.append(Layout(shard=num_ranks, offload=True, rows=rows))
    return [layout for layout in layouts if layout.has_rows(log.rows)]


def _across_models(log: EventLog, num_ranks: int, within: int, rows: int) -> list[Layout]:
    """Return the strategies that cut the model: tensor within a node, and with it FSDP or a pipeline."""
    layouts = []
    is_cut = bool(log.blocks) and any(is_matrix(weight.name) for weight in log.weights)
    if is_cut and num_ranks % within == 0:
        layouts.append(Layout(tensor=within, shard=num_ranks // within, rows=rows))
    if len(log.blocks) >= num_ranks:
        layouts.append(Layout(pipeline=num_ranks, accumulation=num_ranks, rows=rows))
    tensor = within if within < num_ranks else LEAST_TENSOR
    rest = num_ranks // tensor
    if not is_cut or num_ranks % tensor or rest == 1:
        return layouts
    if num_ranks == within:
        layouts.append(Layout(tensor=tensor, shard=rest, rows=rows))
    if len(log.blocks) >= rest:
        layouts.append(Layout(tensor=tensor, pipeline=rest, accumulation=rest, rows=rows))
    return layouts
