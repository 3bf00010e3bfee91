"""What the machine adds to a run: settings for every rank, cores to stay off, the way into a container."""

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
    """The machine that one stands on, if it is known, and what was seen of the software."""

    machine: Machine | None = None
    how: str = ""
    """How it was recognised."""
    partition: str = ""
    rocm: str = ""
    """The version that PyTorch here was built for; empty: none, or not known."""
    environ: Mapping[str, str] | None = None
    """What the user has set already."""
    runtimes: tuple[str, ...] = ()
    """Container runtimes that are installed here."""

    @property
    def kind(self) -> NodeType | None:
        """The kind of node of the partition, where the machine and the partition are known."""
        rows = self.machine.partitions if self.machine is not None else ()
        row = next((row for row in rows if row.name == self.partition), None)
        return self.machine.node_type(row) if row is not None and self.machine is not None else None

    @property
    def documented_cores(self) -> tuple[tuple[int, tuple[int, ...]], ...]:
        """The devices with the cores nearest to each; empty where they are not published."""
        return tuple((row.device, row.cores) for row in self.kind.nearest) if self.kind is not None else ()


def variables(
    site: Site, job_environ: tuple[tuple[str, str], ...], num_nodes: int
) -> tuple[tuple[Variable, ...], tuple[Reason, ...]]:
    """Return the machine's settings without those that the user has made, and a reason for each of both."""
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
