"""Notice agents that are silent though their connection stands: a stopped process, or a frozen node."""

from __future__ import annotations

import time
from collections.abc import Callable

from echelon.launch.crew import Crew, Member
from echelon.node import process_state

SILENT_SECONDS = 8.0  # agents send a beat each second
SILENT_AT_END_SECONDS = 2.5  # in a run that ends anyway, nobody is lost by mistake
LOOK_SECONDS = 0.25  # a thousand agents make a thousand turns of the loop each second
PAUSE_SECONDS = 3.0  # a turn of the supervisor's loop takes at most one second; a longer one was its own pause


class Heartbeat:
    """The time of silence of each agent, without the pauses of the supervisor itself.

    A suspended machine stops the clock too, so its sleep does not count either.
    """

    def __init__(self, crew: Crew, clock: Callable[[], float] = time.monotonic) -> None:
        self._crew = crew
        self._clock = clock
        self._last = self._since = clock()

    def look(self, *, is_ending: bool) -> None:
        """Look at each turn of the supervisor's loop; expel agents that are silent for too long."""
        now = self._clock()
        if now - self._last < LOOK_SECONDS:
            return
        if now - self._last > PAUSE_SECONDS:
            self._since = now
        self._last = now
        limit = SILENT_AT_END_SECONDS if is_ending else SILENT_SECONDS
        for member in list(self._crew):
            silent = now - max(self._since, member.heard_at)
            if silent >= limit:
                self._crew.expel(member, words(member, silent))


def words(member: Member, seconds: float) -> str:
    """Say which agent is silent, and what the kernel says about it if it runs on this node."""
    node = member.placement.node
    process = process_state.read(member.pid) if member.address.startswith("127.") else None
    why = process_state.STATES.get(process.state, "") if process is not None else ""
    ranks = sorted(member.share.ranks) if member.share is not None else []
    of_ranks = f"ranks {ranks[0]} to {ranks[-1]}" if len(ranks) > 1 else f"rank {ranks[0]}" if ranks else "no rank"
    frozen = f": process {member.pid} is {why}" if why else "; the agent or its node is frozen"
    return f"the agent on {node}, which runs {of_ranks}, has been silent for {seconds:.0f} s{frozen}"
