"""Which agents a run waits for, how long, and with how many it goes on: `--nnodes MIN:MAX`."""

from __future__ import annotations

import time
from collections.abc import Callable

from echelon.errors import EchelonError
from echelon.launch import layout
from echelon.launch.crew import Crew, Member
from echelon.launch.failure import NEVER
from echelon.spec import Plan

GATHER_SECONDS = 600.0  # how long nodes may take to come; torchrun waits as long
LAST_CALL_SECONDS = 30.0  # and those that could be done without, once the others are there; as torchrun's


class Gathering:
    """Counts the agents of the next attempt, and gives them their ranks."""

    def __init__(self, plan: Plan, crew: Crew) -> None:
        self._plan = plan
        self._crew = crew
        self._per_node = plan.ranks_per_node if plan.launch == "tasks" else 1
        self._least = max(1, plan.min_nodes) * self._per_node
        self.num_agents = plan.num_nodes * self._per_node
        """How many make up an attempt."""
        self.deadline = time.monotonic() + GATHER_SECONDS
        self.error: Callable[[], EchelonError] = lambda: layout.missing(
            plan, [member.seat for member in crew], GATHER_SECONDS
        )

    def note_join(self) -> bool:
        """Say whether all have come; once those have without which it cannot begin, the others must hurry."""
        num_come = len(self._crew.members)
        if num_come >= self._least:
            self.deadline = min(self.deadline, time.monotonic() + LAST_CALL_SECONDS)
        return num_come == self.num_agents

    def has_enough(self) -> bool:
        """Say whether as many are there as an attempt needs."""
        return len(self._crew.members) >= self._least

    def can_go_on(self) -> bool:
        """Say whether another attempt has agents enough that have ended their ranks; others are left behind.

        A rank that could not be ended still holds its device, so its node is lost.
        """
        stuck = [member for member in self._crew if not member.is_stopped]
        if len(self._crew.members) - len(stuck) < self._least:
            return False
        for member in stuck:
            self._crew.dismiss(member)
        return True

    @property
    def is_smaller(self) -> bool:
        """Say whether agents are gone that the last attempt had."""
        return len(self._crew.members) < self.num_agents

    @property
    def num_nodes(self) -> int:
        """On how many nodes they are."""
        return len({member.seat.node_rank for member in self._crew})

    @property
    def going_on(self) -> str:
        """Say with what a new attempt goes on."""
        if self.num_nodes == self._plan.num_nodes:
            return "starting all ranks again"
        num_ranks = sum(member.seat.num_ranks for member in self._crew)
        return f"continuing with {num_ranks} ranks on {self.num_nodes} of {self._plan.num_nodes} nodes"

    def settle(self) -> None:
        """Give the agents that are there their ranks; raise EchelonError where they cannot have any.

        Agents that are too many, as where --exact wants a power of two, are sent home.
        """
        self.deadline = NEVER
        self._crew.is_complete = True
        chosen = self._whole_nodes()
        shares = self._shares_of(chosen)
        for member in self._crew:
            if member not in chosen:
                self._crew.dismiss(member)
        for member, share in zip(chosen, shares, strict=True):
            member.share = share
        self.num_agents = len(chosen)

    def ports_of(self, member: Member) -> dict[str, object]:
        """Return what an agent is asked for: ports for the master and its ranks, and stores if rank 0 is its."""
        is_first = member.share is not None and member.share.first_rank == 0
        num_ranks = sum(len(other.share.ranks) for other in self._crew if other.share is not None)
        about = {"run_id": self._plan.run_id, "num_ranks": num_ranks, "has_first_rank": is_first}
        return {"count": member.seat.num_ranks + 1, **about}

    def _shares_of(self, chosen: list[Member]) -> list[layout.Share]:
        """Return what each may do, with as many nodes as the plan allows; shorten the list to those."""
        error: EchelonError | None = None
        for num_agents in range(len(chosen), self._least - 1, -self._per_node):
            try:
                shares = layout.settle(self._plan, [member.seat for member in chosen[:num_agents]])
            except EchelonError as why:
                error = error or why
                continue
            del chosen[num_agents:]
            return shares
        raise error or self.error()

    def _whole_nodes(self) -> list[Member]:
        """Leave out nodes of whose tasks one is gone, where nodes may be missing."""
        members = list(self._crew)
        if len(members) == self.num_agents:
            return members
        counts = [sum(other.seat.node_rank == member.seat.node_rank for other in members) for member in members]
        return [member for member, count in zip(members, counts, strict=True) if count >= self._per_node]
