"""Which agents a run waits for, how long, and with how few it continues: `--nnodes MIN:MAX`."""

from __future__ import annotations

import time
from collections.abc import Callable

from echelon.errors import EchelonError
from echelon.launch import layout
from echelon.launch.crew import AgentConnection, AgentConnections
from echelon.launch.failure import NEVER
from echelon.spec import Plan

GATHER_SECONDS = 600.0  # how long nodes may take to join; torchrun waits as long
LAST_CALL_SECONDS = 30.0  # how long optional nodes may take once the required ones have joined; torchrun's value


class Gathering:
    """Count the agents of the next attempt, and give them their ranks."""

    def __init__(self, plan: Plan, crew: AgentConnections) -> None:
        self._plan = plan
        self._crew = crew
        self._per_node = plan.ranks_per_node if plan.launch == "tasks" else 1
        self._least = max(1, plan.min_nodes) * self._per_node
        self.num_agents = (plan.num_nodes + plan.num_spares) * self._per_node
        """The number of agents to wait for, spares included; afterwards of those that have ranks."""
        self._stand_ins: list[str] = []
        """The nodes that were spares in the attempt before."""
        self.deadline = time.monotonic() + GATHER_SECONDS
        self.error: Callable[[], EchelonError] = lambda: layout.missing(
            plan, [member.placement for member in crew], GATHER_SECONDS
        )

    def note_join(self) -> bool:
        """Say whether all agents have joined; once the required agents have, give the others a shorter deadline."""
        num_joined = len(self._crew.members)
        if num_joined >= self._least:
            self.deadline = min(self.deadline, time.monotonic() + LAST_CALL_SECONDS)
        return num_joined == self.num_agents

    def has_enough(self) -> bool:
        return len(self._crew.members) >= self._least

    def expect(self, num_agents: int, *, seconds: float) -> None:
        self.num_agents = num_agents
        self.deadline = time.monotonic() + seconds

    def leave_behind(self) -> None:
        """Dismiss the agents whose ranks could not be ended: these still hold their devices, so the node is lost."""
        for member in [member for member in self._crew if not member.is_stopped]:
            self._crew.dismiss(member)

    @property
    def is_smaller(self) -> bool:
        """Say whether the last attempt had agents that are gone."""
        return len(self._crew.with_ranks) < self.num_agents

    @property
    def num_missing(self) -> int:
        """The number of agents that are lost and that no spare replaces."""
        return max(0, self.num_agents - len(self._crew.members))

    @property
    def num_nodes(self) -> int:
        return len({member.placement.node_rank for member in self._crew.with_ranks})

    @property
    def going_on(self) -> str:
        """How the next attempt continues, for a message."""
        spares = f"the spare {', '.join(self._stand_ins)} takes over; " if self._stand_ins else ""
        if self.num_nodes == self._plan.num_nodes:
            return f"{spares}starting all ranks again"
        num_ranks = sum(member.placement.num_ranks for member in self._crew.with_ranks)
        return f"{spares}continuing with {num_ranks} ranks on {self.num_nodes} of {self._plan.num_nodes} nodes"

    def assign_ranks(self) -> None:
        """Give the agents their ranks; raise EchelonError if that is impossible.

        Agents without ranks wait as spares: `--exact`, for one, needs a power of two.
        """
        self.deadline = NEVER
        self._crew.is_complete = True
        chosen = self._whole_nodes()
        del chosen[self._plan.num_nodes * self._per_node :]
        shares = self._shares_of(chosen)
        is_first = not self._crew.with_ranks
        self._stand_ins = [] if is_first else [each.placement.node for each in chosen if each.share is None]
        for member in self._crew:
            member.share, member.is_stopped = None, True
        for member, share in zip(chosen, shares, strict=True):
            member.share, member.is_stopped = share, False
        self.num_agents = len(chosen)

    def ports_of(self, member: AgentConnection) -> dict[str, object]:
        """Return the request for ports of an agent; the agent of rank 0 also serves the store."""
        is_first = member.share is not None and member.share.first_rank == 0
        num_ranks = sum(len(other.share.ranks) for other in self._crew if other.share is not None)
        about = {"run_id": self._plan.run_id, "num_ranks": num_ranks, "has_first_rank": is_first}
        return {"count": member.placement.num_ranks + 1, **about}

    def _shares_of(self, chosen: list[AgentConnection]) -> list[layout.AgentShare]:
        """Return the shares on as many nodes as the plan allows; shorten `chosen` to these agents."""
        error: EchelonError | None = None
        for num_agents in range(len(chosen), self._least - 1, -self._per_node):
            try:
                shares = layout.agent_shares(self._plan, [member.placement for member in chosen[:num_agents]])
            except EchelonError as why:
                error = error or why
                continue
            del chosen[num_agents:]
            return shares
        raise error or self.error()

    def _whole_nodes(self) -> list[AgentConnection]:
        """Return the agents of nodes that have all their tasks."""
        members = list(self._crew)
        if len(members) == self.num_agents:
            return members
        counts = [
            sum(other.placement.node_rank == member.placement.node_rank for other in members) for member in members
        ]
        return [member for member, count in zip(members, counts, strict=True) if count >= self._per_node]
