"""The strategies that `--scale` can do to an unchanged script, and the simplest of them that fits."""

from __future__ import annotations

from echelon.errors import UsageError
from echelon.estimate.choice import MARGIN, Choice
from echelon.estimate.devices import Device
from echelon.estimate.layout import ALWAYS, POLICY, Layout
from echelon.estimate.log import EventLog
from echelon.estimate.places import is_matrix
from echelon.estimate.verdict import Verdict, judge

_OF_AXIS = {"replicate": "data", "shard": "fsdp", "tensor": "tensor", "pipeline": "pipeline"}
MODEL_PARALLEL = ("tensor", "pipeline")


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


def choose(log: EventLog, device: Device, tried: list[Layout], *, margin: float = MARGIN) -> Choice:
    """Take the first layout that fits with a margin; of those that split the model, the one that sends least is first.

    UsageError if no layout is left to try: the batch has less than one row a rank.
    """
    if not tried:
        raise UsageError(
            f"a batch of {log.rows} rows has less than one row for each rank", hint="fewer ranks, or a larger batch"
        )
    verdicts: list[Verdict] = []
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
