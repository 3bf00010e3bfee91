"""Turn the signal before a time limit, or the end of the keeper, into an order to all ranks: save, and end."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable

from echelon.launch import failure
from echelon.launch.crew import AgentConnection, AgentConnections
from echelon.launch.failure import NEVER, Failure
from echelon.launch.run_directory import RunDirectory
from echelon.node import order
from echelon.node.channel import Message
from echelon.orders import checkpoint
from echelon.spec import Plan

SCRIPT, ECHELON = "script", "echelon"
REPEAT_SECONDS = 2.0
"""The scheduler and an agent may both report one signal; a later SIGTERM is the time limit itself."""


class SaveAndExit:
    """The order of one run: given at most once, in a job that others follow, or in a saved run that lost its keeper.

    The supervisor first asks all agents whether the script has a handler for the signal. If it has, the script is in
    charge, and gets the signal. Otherwise all agents write the order file.
    """

    def __init__(self, plan: Plan, crew: AgentConnections, directory: RunDirectory, say: Callable[[str], None]) -> None:
        self._environ = dict(plan.environ)
        self._crew, self._directory, self._say = crew, directory, say
        self._number = 0
        self._catching: dict[int, int] = {}
        """Agent → its number of ranks whose script handles the signal."""
        self._handed_over: set[int] = set()
        self._given_at = NEVER
        self._early = 0
        """A signal that came while no rank ran; 0: none."""

    @property
    def is_given(self) -> bool:
        return self._number != 0

    def take(self, number: int, *, has_ranks: bool) -> bool:
        """Say whether a signal is an order or repeats one; give the order when it comes first.

        USR1 and USR2 wait for the start of ranks; without ranks, SIGTERM ends the run. SIGKILL is that of the keeper.
        """
        is_of_keeper = number == signal.SIGKILL and checkpoint.VARIABLE in self._environ
        if not (is_of_keeper or order.is_warning(self._environ, number)):
            return False
        if not has_ranks:
            waits = number in (signal.SIGUSR1, signal.SIGUSR2)
            self._early = number if waits else self._early
            return waits
        if self.is_given:
            return number != signal.SIGTERM or time.monotonic() - self._given_at < REPEAT_SECONDS
        self._number, self._given_at = number, time.monotonic()
        self._crew.tell_all("who catches", number=number)
        return True

    def give_early(self) -> None:
        """Give the order whose signal came before the ranks started."""
        if self._early:
            self.take(self._early, has_ranks=True)

    def note_handlers(self, member: AgentConnection, message: Message) -> None:
        """Note an agent's answer; when all have answered, tell them who is in charge."""
        self._catching[member.placement.agent_index] = int(message["count"])
        if len(self._catching) < len(self._crew.members):
            return
        name = signal.Signals(self._number).name
        num_catching = sum(self._catching.values())
        charge = SCRIPT if num_catching else ECHELON
        self._directory.event("order", number=self._number, charge=charge, catching=num_catching)
        if num_catching:
            self._say(f"{name}: the script has its own handler for it, so the script is in charge of saving")
        else:
            self._say(f"{name}: echelon is in charge: the ranks are to save and end ({order.FILE})")
        self._crew.tell_all("order", number=self._number, charge=charge)

    def hear_exit(self, message: Message) -> Message:
        """Return an exit message; a rank that has handed over, as ordered, has not failed."""
        if not (self.is_given and message["status"] == order.HANDED_OVER):
            return message
        self._handed_over.add(int(message["rank"]))
        return {**message, "status": 0}

    def outcome(self, num_ranks: int) -> Failure | None:
        """Return how the ranks ended if they carried out the order; None: they did not."""
        if not self._handed_over:
            return None
        if len(self._handed_over) == num_ranks:
            seconds = time.monotonic() - self._given_at
            detail = f"all ranks saved and ended, {seconds:.1f} s after {signal.Signals(self._number).name}"
            return Failure(cause=failure.HANDED_OVER, detail=detail, exit_code=order.HANDED_OVER)
        others = num_ranks - len(self._handed_over)
        detail = f"{len(self._handed_over)} of {num_ranks} ranks saved and ended as ordered, but {others} did not"
        return Failure(cause=failure.MADE_EXIT, detail=detail, exit_code=1)
