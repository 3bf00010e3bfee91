"""Forward a signal to the ranks, unless Slurm has delivered it: Slurm signals a job's agents and supervisor alike."""

from __future__ import annotations

import time

from echelon.launch.crew import Crew, Member
from echelon.launch.failure import NEVER

WORD_SECONDS = 0.5  # agents also report within this time that they were signalled


class Relay:
    """Deliver a signal to each rank once, from Slurm or from here, whichever comes first."""

    def __init__(self, crew: Crew, *, is_in_job: bool) -> None:
        self._crew = crew
        self._is_in_job = is_in_job
        self._number = 0
        self._told: set[tuple[int, int]] = set()
        """Signals, each with the agent whose ranks already have it."""
        self.deadline = NEVER
        """The time at which a pending signal is forwarded."""

    def note(self, member: Member, number: int) -> None:
        """Record that Slurm signalled an agent and its ranks."""
        self._told.add((number, member.placement.agent_index))

    def send(self, number: int) -> None:
        """Forward a signal; inside a job wait a moment, and skip agents that report it by then."""
        self._number = number
        self.deadline = time.monotonic() + WORD_SECONDS
        if not self._is_in_job:
            self.meet()

    def meet(self) -> None:
        """Forward the pending signal to the agents that have not reported it."""
        self.deadline = NEVER
        for member in self._crew:
            if (self._number, member.placement.agent_index) not in self._told:
                self._crew.tell(member, "signal", number=self._number)
