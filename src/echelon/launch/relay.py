"""Hand a signal on to the ranks, unless Slurm has done it: it signals a job's agents and its supervisor alike."""

from __future__ import annotations

import time

from echelon.launch.crew import Crew, Member
from echelon.launch.failure import NEVER

WORD_SECONDS = 0.5  # in which agents tell that they were signalled too


class Relay:
    """Each rank gets a signal once, from Slurm or from here, whichever was first."""

    def __init__(self, crew: Crew, *, is_in_job: bool) -> None:
        self._crew = crew
        self._is_in_job = is_in_job
        self._number = 0
        self._told: set[tuple[int, int]] = set()
        """Signals, and the agents whose ranks have had them."""
        self.deadline = NEVER
        """When what was sent is handed on."""

    def note(self, member: Member, number: int) -> None:
        """Take note that an agent was signalled, and its ranks with it."""
        self._told.add((number, member.seat.agent_index))

    def send(self, number: int) -> None:
        """Hand a signal on; in a job after a moment, to those that have not told of it by then."""
        self._number = number
        self.deadline = time.monotonic() + WORD_SECONDS
        if not self._is_in_job:
            self.meet()

    def meet(self) -> None:
        """Hand on what is due."""
        self.deadline = NEVER
        for member in self._crew:
            if (self._number, member.seat.agent_index) not in self._told:
                self._crew.tell(member, "signal", number=self._number)
