"""The layouts that a person compares: every strategy on a number of devices, and changes of the script on one."""

from __future__ import annotations

from echelon.estimate.choice import candidates
from echelon.estimate.layout import POLICY, Layout
from echelon.estimate.log import EventLog
from echelon.estimate.places import is_matrix

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
