"""Select a machine's environment settings for a job."""

from __future__ import annotations

from typing import TYPE_CHECKING

from echelon.environment import digits
from echelon.spec import Variable

if TYPE_CHECKING:
    from echelon.machines.machine import Machine, NodeType, Setting


def variables(machine: Machine, kind: NodeType | None, *, num_nodes: int, rocm: str) -> tuple[Variable, ...]:
    """Return the settings for a job of this size; skip a setting that a newer ROCm does not need.

    `rocm` is the version that PyTorch was built for; empty: unknown, which keeps the setting.
    """
    scratch = (kind.scratch if kind is not None else "") or "/tmp"
    return tuple(
        Variable(
            name=row.name,
            value=row.value.replace("{scratch}", scratch),
            why=row.why,
            is_folder=row.kind == "folder",
        )
        for row in machine.settings
        if _is_needed(row, kind, num_nodes, rocm)
    )


def _is_needed(row: Setting, kind: NodeType | None, num_nodes: int, rocm: str) -> bool:
    if row.max_nodes is not None and num_nodes > row.max_nodes:
        return False
    if row.min_nodes is not None and num_nodes < row.min_nodes:
        return False
    if row.node_types and (kind is None or kind.name not in row.node_types):
        return False
    return not (row.below_rocm and rocm and _version(rocm) >= _version(row.below_rocm))


def _version(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(".")[:2] if digits.is_number(part))
