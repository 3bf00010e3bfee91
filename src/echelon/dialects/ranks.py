"""The number and place of a script's ranks: of a run that begins now, or of a job to submit."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from echelon.spec import Booking, Job, Plan
from echelon.spec.booking import Variable


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranks:
    """The facts about ranks that checks of a script need."""

    where: str
    """"here", "slurm" or "meet", as in a plan."""
    num_nodes: int
    per_node: int
    """0: each node decides."""
    devices_per_node: int
    visible: str
    settings: dict[str, str]
    """The environment settings of the machine."""

    @property
    def num_ranks(self) -> int:
        return self.num_nodes * self.per_node


def planned(plan: Plan) -> Ranks:
    return Ranks(
        where=plan.where,
        num_nodes=plan.num_nodes,
        per_node=plan.ranks_per_node,
        devices_per_node=plan.devices_per_node,
        visible=plan.visible,
        settings=_settings(plan.variables),
    )


def booked(job: Job, booking: Booking) -> Ranks:
    return Ranks(
        where="slurm",
        num_nodes=booking.num_nodes,
        per_node=booking.ranks_per_node,
        devices_per_node=booking.devices_per_node,
        visible=job.visible,
        settings=_settings(booking.variables),
    )


def _settings(variables: Iterable[Variable]) -> dict[str, str]:
    return {variable.name: variable.value for variable in variables}
