"""Signals that ask a run to stop: how often they came, and how long the ranks may take."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable

from echelon.launch.crew import Crew, Member
from echelon.launch.failure import NEVER
from echelon.launch.relay import Relay
from echelon.node.channel import Message

FAILURE_GRACE_SECONDS = 1.0  # with the kill and the sweep, all processes end within 2 s
INTERRUPT_SECONDS = 10.0  # how long ranks may take to end after Ctrl-C
TERMINATE_SECONDS = 30.0  # and after SIGTERM, to which scripts respond with a checkpoint


class StopRequests:
    """Pass signals on to the ranks; the second one, or the end of the time, stops them.

    `stop` stops the ranks after these seconds; `end_idle` ends a run that has no ranks now, and says whether it did.
    """

    def __init__(
        self,
        crew: Crew,
        relay: Relay,
        say: Callable[[str], None],
        *,
        stop: Callable[[float], None],
        end_idle: Callable[[], bool],
    ) -> None:
        self.number = 0
        """The first signal that asked the run to stop; 0: none."""
        self.deadline = NEVER
        """The end of the time that ranks have."""
        self._crew = crew
        self._relay = relay
        self._say = say
        self._stop = stop
        self._end_idle = end_idle
        self._num_interrupts = 0
        self._num_terminations = 0
        self._ignored: set[int] = set()

    def receive(self, number: int) -> None:
        """Respond to a signal that this process got."""
        if number in (signal.SIGUSR1, signal.SIGUSR2):
            self._crew.tell_all("signal", number=number)
            return
        self.number = self.number or number
        self._num_interrupts += number == signal.SIGINT
        self._num_terminations += number == signal.SIGTERM
        if self._end_idle():
            return
        if number == signal.SIGINT and self._num_interrupts == 1:
            self._say("stopping; Ctrl-C again kills at once")
            self._crew.tell_all("signal", number=number)
            self.deadline = time.monotonic() + INTERRUPT_SECONDS
        elif self.number == number == signal.SIGTERM and self._num_terminations == 1:
            self._relay.send(number)
            self.deadline = min(self.deadline, time.monotonic() + TERMINATE_SECONDS)
        else:
            self._stop(0.0 if number == signal.SIGINT else FAILURE_GRACE_SECONDS)

    def note_ignored(self, member: Member, message: Message) -> None:
        """Say once that ranks ignore a signal, which announces the end of the job on many sites."""
        number, ranks = message["number"], message["ranks"]
        if number in self._ignored:
            return
        self._ignored.add(number)
        name = signal.Signals(number).name
        more = f" and {len(ranks) - 1} more" if len(ranks) > 1 else ""
        self._say(
            f"note: {name} came; rank {ranks[0]}{more} on {member.placement.node} ignored it, because the script has "
            f"no handler for it; to save a snapshot then: signal.signal(signal.{name}, …)"
        )

    def note_signalled(self, member: Member, number: int) -> None:
        """Respond to a signal that Slurm sent to an agent and its ranks."""
        self._relay.note(member, number)
        if number in (signal.SIGTERM, signal.SIGINT) and not self.number:
            self.number = number
            self.deadline = time.monotonic() + TERMINATE_SECONDS
            self._end_idle()
