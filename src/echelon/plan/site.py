"""The machine's contribution to a run: settings for ranks, reserved cores, the container's convention."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from echelon.environment import digits
from echelon.machines.machine import Machine, NodeType, Setting
from echelon.spec import Reason, Variable


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownMachine:
    """The current machine, if it is known, and the software that was found."""

    machine: Machine | None = None
    how: str = ""
    """How the machine was recognised."""
    partition: str = ""
    rocm: str = ""
    """The ROCm version of the PyTorch here; empty: none, or unknown."""
    environ: Mapping[str, str] | None = None
    """Variables that the user has already set."""
    runtimes: tuple[str, ...] = ()
    """Container runtimes that are installed here."""

    @property
    def kind(self) -> NodeType | None:
        """The node type of the partition, if machine and partition are known."""
        rows = self.machine.partitions if self.machine is not None else ()
        row = next((row for row in rows if row.name == self.partition), None)
        return self.machine.node_type(row) if row is not None and self.machine is not None else None

    @property
    def documented_cores(self) -> tuple[tuple[int, tuple[int, ...]], ...]:
        """The devices with their nearest cores; empty if unpublished."""
        return tuple((row.device, row.cores) for row in self.kind.nearest) if self.kind is not None else ()


def variables(
    site: KnownMachine, job_environ: tuple[tuple[str, str], ...], num_nodes: int
) -> tuple[tuple[Variable, ...], tuple[Reason, ...]]:
    """Return the machine's settings that the user has not set, and a reason for every setting."""
    if site.machine is None:
        return (), ()
    theirs = {**(site.environ or {}), **dict(job_environ)}
    wanted = variables_of_job(site.machine, site.kind, num_nodes=num_nodes, rocm=site.rocm)
    ours = tuple(variable for variable in wanted if variable.name not in theirs)
    reasons = [Reason(what="machine", value=site.machine.title, why=site.how)]
    for variable in wanted:
        if variable in ours:
            reasons.append(Reason(what="environment", value=f"{variable.name}={variable.value}", why=variable.why))
        elif theirs[variable.name] != variable.value:
            kept = f"{variable.name}={theirs[variable.name]}"
            reasons.append(
                Reason(what="environment", value=kept, why=f"your own value; the machine's is {variable.value}")
            )
    return ours, tuple(reasons)


def variables_of_job(machine: Machine, kind: NodeType | None, *, num_nodes: int, rocm: str) -> tuple[Variable, ...]:
    """Return the settings for a job of this size; skip a setting that a newer ROCm does not need.

    `rocm` is the version that PyTorch was built for; empty: unknown, which keeps the setting.
    """
    scratch = (kind.scratch if kind is not None else "") or "/tmp"
    return tuple(
        Variable(
            name=row.name, value=row.value.replace("{scratch}", scratch), why=row.why, is_folder=row.kind == "folder"
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
