"""Turn signals into events of the supervisor's loop: forward them to the ranks, or stop the run."""

from __future__ import annotations

import os
import select
import selectors
import signal
import time
from collections import Counter
from collections.abc import Callable
from types import FrameType
from typing import Any

from echelon.launch.crew import AgentConnection, AgentConnections
from echelon.launch.failure import NEVER
from echelon.launch.kept import KeeperLink
from echelon.node.channel import Message

CAUGHT = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)


class Signals:
    """Catch signals while the supervisor's loop runs; restore the old handlers afterwards.

    The keeper passes its own signals on by a link. What is sent to a process group or to a job reaches both processes,
    and counts once. A keeper that was killed counts as SIGKILL: whoever killed it meant the run.
    """

    def __init__(self, selector: selectors.BaseSelector, on_signal: Callable[[int], None], kept: KeeperLink) -> None:
        self._on_signal = on_signal
        self._selector = selector
        self._link = kept.link
        self._num_here: Counter[int] = Counter()
        self._num_passed_on: Counter[int] = Counter()
        self._pipe = os.pipe()
        for end in self._pipe:
            os.set_blocking(end, False)
        self._old_wakeup = signal.set_wakeup_fd(self._pipe[1], warn_on_full_buffer=False)
        self._old: dict[int, Any] = {}
        for number in CAUGHT:
            if number == signal.SIGHUP and signal.getsignal(number) == signal.SIG_IGN:
                continue  # nohup had set this handler
            self._old[number] = signal.signal(number, _do_nothing)
        selector.register(self._pipe[0], selectors.EVENT_READ, self._hear)
        selector.register(self._link, selectors.EVENT_READ, self._hear_keeper)
        signal.pthread_sigmask(signal.SIG_SETMASK, kept.mask)

    def _hear(self) -> None:
        self._count(os.read(self._pipe[0], 4096), self._num_here, self._num_passed_on)

    def _hear_keeper(self) -> None:
        try:
            numbers = self._link.recv(4096)
        except ConnectionResetError:  # it was killed with words of ours unread
            numbers = b""
        if numbers:
            self._count(numbers, self._num_passed_on, self._num_here)
        else:
            self._selector.unregister(self._link)
            self._on_signal(signal.SIGKILL)

    def _count(self, numbers: bytes, counts: Counter[int], others: Counter[int]) -> None:
        for number in numbers:
            if number in self._old:
                counts[number] += 1
                if counts[number] > others[number]:
                    self._on_signal(number)

    def is_waiting(self) -> bool:
        """Say whether a signal has arrived that the loop has not read yet."""
        return bool(select.select([self._pipe[0], self._link.fileno()], [], [], 0)[0])

    def close(self) -> None:
        for number, handler in self._old.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(self._old_wakeup)
        for end in self._pipe:
            os.close(end)


def _do_nothing(_number: int, _frame: FrameType | None) -> None:
    """Do nothing: the wake-up pipe already holds the signal's number."""


WORD_SECONDS = 0.5  # agents also report within this time that they were signalled


class Relay:
    """Deliver a signal to each rank once, from the scheduler or from here, whichever comes first."""

    def __init__(self, crew: AgentConnections, *, is_in_job: bool) -> None:
        self._crew = crew
        self._is_in_job = is_in_job
        self._number = 0
        self._told: set[tuple[int, int]] = set()
        """Signals, each with the agent whose ranks already have it."""
        self.deadline = NEVER
        """The time at which a pending signal is forwarded."""

    def note(self, member: AgentConnection, number: int) -> None:
        """Record that an agent and its ranks were signalled from outside."""
        self._told.add((number, member.placement.agent_index))

    def send(self, number: int) -> None:
        """Forward a signal; inside a job wait a moment, and skip agents that report it by then."""
        self._number = number
        self.deadline = time.monotonic() + WORD_SECONDS
        if not self._is_in_job:
            self.on_deadline()

    def on_deadline(self) -> None:
        """Forward the pending signal to the agents that have not reported it."""
        self.deadline = NEVER
        for member in self._crew:
            if (self._number, member.placement.agent_index) not in self._told:
                self._crew.tell(member, "signal", number=self._number)


FAILURE_GRACE_SECONDS = 1.0  # with the kill and the sweep, all processes end within 2 s
INTERRUPT_SECONDS = 10.0  # how long ranks may take to end after Ctrl-C
TERMINATE_SECONDS = 30.0  # and after SIGTERM, to which scripts respond with a checkpoint


class StopRequests:
    """Pass signals on to the ranks; the second one, or the end of the time, stops them.

    `stop` stops the ranks after these seconds; `end_idle` ends a run that has no ranks now, and says whether it did.
    """

    def __init__(
        self,
        crew: AgentConnections,
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
        self._crew, self._relay, self._say, self._stop, self._end_idle = crew, relay, say, stop, end_idle
        self._num_interrupts = 0
        self._num_terminations = 0
        self._ignored: set[int] = set()

    def receive(self, number: int, *, is_order: bool = False) -> None:
        """Respond to a signal that this process got; ranks that it orders to save and end have time for it."""
        if is_order:
            if number == signal.SIGKILL:
                self.number = self.number or number
                self.deadline = min(self.deadline, time.monotonic() + TERMINATE_SECONDS)
            return
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

    def note_ignored(self, member: AgentConnection, message: Message) -> None:
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

    def note_signalled(self, member: AgentConnection, number: int) -> None:
        """Respond to a signal that an agent and its ranks got from outside."""
        self._relay.note(member, number)
        if number in (signal.SIGTERM, signal.SIGINT) and not self.number:
            self.number = number
            self.deadline = time.monotonic() + TERMINATE_SECONDS
            self._end_idle()
