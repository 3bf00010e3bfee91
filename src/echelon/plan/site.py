"""The machine's contribution to a run: settings for ranks, reserved cores, the container's convention."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from echelon.plan import settings
from echelon.spec import Reason, Variable

if TYPE_CHECKING:
    from echelon.machines.machine import Machine, NodeType


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
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
    site: Site, job_environ: tuple[tuple[str, str], ...], num_nodes: int
) -> tuple[tuple[Variable, ...], tuple[Reason, ...]]:
    """Return the machine's settings that the user has not set, and a reason for every setting."""
    if site.machine is None:
        return (), ()
    theirs = {**(site.environ or {}), **dict(job_environ)}
    wanted = settings.variables(site.machine, site.kind, num_nodes=num_nodes, rocm=site.rocm)
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
