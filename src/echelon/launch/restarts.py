"""Decide whether another attempt follows a failed one, and start lost agents again on healthy nodes."""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Callable, Sequence

from echelon.launch import failure
from echelon.launch.agents import can_start_again
from echelon.launch.crew import AgentConnection, AgentConnections
from echelon.launch.failure import Failure
from echelon.launch.gathering import Gathering
from echelon.launch.layout import AgentPlacement
from echelon.launch.run_directory import RunDirectory
from echelon.node.sweep import Life
from echelon.spec import Plan

MAX_PORT_CLASHES = 3
FIRST_WAIT_SECONDS = 1.0  # before the second restart without progress; the first one follows at once
MAX_WAIT_SECONDS = 60.0
LONG_ATTEMPT_SECONDS = 600.0  # an attempt that fails after this time is no quick series of failures
UNKNOWN_STEP = -1
_FINAL = (
    failure.INTERRUPTED, failure.TIME_LIMIT, failure.MISPLACED, failure.REFUSED, failure.UNKNOWN_PYTORCH,
    failure.NEEDS_MPI,
)  # fmt: skip
# the same traceback of these causes, twice, comes a third time; other causes are about what surrounds the script
_LASTING = (
    failure.USER_ERROR, failure.OWN_MISTAKE, failure.IMPORT_FAILURE, failure.OUT_OF_MEMORY, failure.OF_RANK_0
)  # fmt: skip
_CHANGES = re.compile(r"0x[0-9a-f]+|^.*\bechelon: .*$", re.MULTILINE)  # addresses, and our own lines with their times
_PLACE = re.compile(r'^\s*File "(?P<file>.+)", line (?P<line>\d+)')


class Restarts:
    """Count the failures without progress, and the attempts that only lost a race for a port.

    `newest_step` returns the step of the newest published checkpoint, or UNKNOWN_STEP.
    """

    def __init__(self, max_restarts: int, newest_step: Callable[[], int] = lambda: UNKNOWN_STEP) -> None:
        self.count = 0
        """The restarted attempts."""
        self.wait_seconds = 0.0
        """How long to wait before the next attempt."""
        self.why_not = ""
        """Why a restart that --max-restarts allows would be in vain."""
        self._max_restarts = max_restarts
        self._newest_step = newest_step
        self._step_at_start = UNKNOWN_STEP
        self._num_in_vain = 0
        self._num_quick = 0
        self._num_port_clashes = 0
        self._last: Failure | None = None

    def note_start(self) -> None:
        """Note the newest checkpoint when an attempt begins."""
        self._step_at_start = self._newest_step()

    @property
    def counts(self) -> tuple[int, int, int]:
        """What the limit needs to know of the past: the restarts, those in vain, and those in quick succession."""
        return self.count, self._num_in_vain, self._num_quick

    def adopt(self, text: str) -> None:
        """Go on from the `counts` of another process, written with commas."""
        self.count, self._num_in_vain, self._num_quick = map(int, text.split(","))

    @property
    def has_left(self) -> bool:
        return self._max_restarts > 0 and (
            self._num_in_vain < self._max_restarts or self._newest_step() > self._step_at_start
        )

    def take(self, reason: Failure, *, has_lost_nodes: bool = False, lasted_seconds: float = 0.0) -> bool:
        """Say whether all ranks should be started again after this failure, and count the restart.

        A restart on fewer nodes, if allowed, is not counted, as with torchrun's --nnodes MIN:MAX.
        """
        self.wait_seconds = 0.0
        if reason.cause in _FINAL:
            return False
        if has_lost_nodes:
            return True
        if reason.cause == failure.PORT_CLASH and self._num_port_clashes < MAX_PORT_CLASHES:
            self._num_port_clashes += 1
            return True
        step, last = self._newest_step(), self._last
        self._last = reason
        if step > self._step_at_start:
            self._num_in_vain = self._num_quick = 0
        elif lasted_seconds >= LONG_ATTEMPT_SECONDS:
            self._num_quick = 0
        if self._num_in_vain >= self._max_restarts:
            return False
        if self._num_in_vain and last is not None and _is_same(last, reason, is_step_known=step != UNKNOWN_STEP):
            self.why_not = _same_twice(reason)
            return False
        if self._num_quick:
            self.wait_seconds = min(MAX_WAIT_SECONDS, FIRST_WAIT_SECONDS * 2.0 ** (self._num_quick - 1))
        self._num_in_vain += 1
        self._num_quick += 1
        self.count += 1
        return True


def _is_same(one: Failure, other: Failure, *, is_step_known: bool) -> bool:
    """Say whether two attempts without progress ended with the same traceback.

    Where no checkpoint tells how far they came, the last lines that the rank wrote must be the same too.
    """
    if one.cause != other.cause or one.cause not in _LASTING or not failure.has_traceback(other):
        return False
    texts = [_CHANGES.sub("", "\n".join(failure.last_words(each.tail))) for each in (one, other)]
    tails = [_CHANGES.sub("", each.tail) for each in (one, other)]
    return texts[0] == texts[1] and (is_step_known or tails[0] == tails[1])


def _same_twice(reason: Failure) -> str:
    """Return a line with the exception and its place."""
    words = failure.last_words(reason.tail)
    error = failure.error_line(reason) or reason.cause
    places = [match for match in map(_PLACE.match, words) if match]
    place = f" ({places[-1]['file'].rpartition('/')[2]}:{places[-1]['line']})" if places else ""
    return f"the same error twice: {error}{place}; echelon starts no further attempt, because none made progress"


JOIN_SECONDS = 60.0  # a scheduler may need so long to find out that a node does not answer
MOST_LOSSES = 2  # a node that failed so often is left out

StartAgent = Callable[[AgentPlacement, Life, Callable[[], None]], None]
"""Start an agent in a place; the last argument is called when its process has ended."""


class Revival:
    """The lost agents of a run, and which of them are started again.

    `start_agent` and `nodes_down` are set where the agents are started: the latter returns what the scheduler says of
    those nodes that are down.
    """

    def __init__(
        self,
        plan: Plan,
        crew: AgentConnections,
        gathering: Gathering,
        directory: RunDirectory,
        say: Callable[[str], None],
    ) -> None:
        self._can_start = can_start_again(plan)
        self._crew, self._gathering, self._directory, self._say = crew, gathering, directory, say
        self.start_agent: StartAgent | None = None
        self.clear: Callable[[AgentPlacement, Life], None] | None = None
        """End a frozen agent and its ranks on their node."""
        self.nodes_down: Callable[[Sequence[str]], dict[str, str]] = lambda _nodes: {}
        self._lost: dict[int, AgentConnection] = {}
        """Lost agents that nobody replaces yet."""
        self._chosen: list[AgentConnection] = []
        """The agents to start again for the next attempt."""
        self._num_losses: Counter[int] = Counter()
        self._down: set[str] = set()
        self._left_out: set[str] = set()
        self.has_begun = False
        """Whether any agent was started again; then the first process of the agents is not the only one."""

    def note_loss(self, member: AgentConnection) -> None:
        """Note an agent that is gone; nothing but a line tells of a spare."""
        index = member.placement.agent_index
        self._lost[index] = member
        self._num_losses[index] += 1
        if member.frozen and self._can_start and self.clear is not None:
            self.clear(member.placement, Life(self._num_losses[index], member.pid))
        if member.share is None and self._crew.is_complete and not self.is_waiting:
            self._say(f"note: the spare {member.placement.node} is lost")

    def note_join(self, member: AgentConnection) -> None:
        self._lost.pop(member.placement.agent_index, None)

    def nodes_reported(self, reason: Failure | None) -> dict[str, str]:
        """Ask the scheduler which nodes of lost agents are down; return a text for each."""
        is_agent = reason is not None and reason.cause == failure.LOST_AGENT
        if reason is None or not (self._lost or is_agent):
            return {}
        nodes = {member.placement.node for member in self._lost.values()} | ({reason.node} - {""})
        down = self.nodes_down(sorted(nodes))
        self._down |= set(down)
        return down

    def _candidates(self) -> list[AgentConnection]:
        if not self._can_start or self.start_agent is None:
            return []
        self._name_left_out()
        return [
            member
            for index, member in sorted(self._lost.items())
            if self._num_losses[index] < MOST_LOSSES and member.placement.node not in self._down
        ]

    def _name_left_out(self) -> None:
        for index, member in sorted(self._lost.items()):
            node = member.placement.node
            if self._num_losses[index] >= MOST_LOSSES and node not in self._left_out:
                self._left_out.add(node)
                self._directory.event("left out", node=node, losses=self._num_losses[index])
                self._say(f"{node} is left out: its agent was lost {self._num_losses[index]} times")

    def may_follow(self, reason: Failure, restarts: Restarts, lasted_seconds: float) -> bool:
        """Say whether another attempt follows, and choose the agents to start again for it."""
        is_smaller = self._gathering.is_smaller
        self._gathering.leave_behind()
        self._chosen = self._candidates()[: self._gathering.num_missing]
        if self._chosen and restarts.take(reason, lasted_seconds=lasted_seconds):
            return True
        self._chosen = []
        return self._gathering.has_enough() and restarts.take(
            reason, has_lost_nodes=is_smaller, lasted_seconds=lasted_seconds
        )

    @property
    def going_on(self) -> str:
        """How the next attempt goes on, for a message."""
        nodes = sorted({member.placement.node for member in self._chosen})
        if not nodes:
            return self._gathering.going_on
        return f"starting the agent on {', '.join(nodes)} again, then all ranks"

    def begin(self) -> bool:
        """Start the chosen agents again; say whether any is on its way."""
        members = self._chosen
        self._crew.awaited = {member.placement.agent_index for member in members}
        why_not = self._crew.invite(self._directory) if members and self.start_agent is not None else ""
        if why_not:
            nodes = ", ".join(sorted({member.placement.node for member in members}))
            self._say(f"the agent on {nodes} cannot be started again: {why_not}")
        if not members or self.start_agent is None or why_not:
            self._crew.awaited, self._chosen = set(), []
            return False
        self.has_begun = True
        self._gathering.expect(len(self._crew.members) + len(members), seconds=JOIN_SECONDS)
        for member in members:
            index, losses = member.placement.agent_index, self._num_losses[member.placement.agent_index]
            self._directory.event("agent again", agent_index=index, node=member.placement.node)
            life = Life(losses, member.pid)
            self.start_agent(member.placement, life, lambda index=index: self._give_up(index))  # type: ignore[misc]
        return True

    @property
    def is_waiting(self) -> bool:
        """Say whether an agent was started again and has not come yet."""
        return bool(self._crew.awaited)

    def _give_up(self, index: int) -> None:
        """Wait no longer for an agent whose process has ended."""
        if index in self._crew.awaited:
            self._crew.awaited.discard(index)
            if not self._crew.awaited:
                self._gathering.deadline = time.monotonic()

    def count_missing(self) -> None:
        """Count the agents that were awaited in vain as lost once more."""
        for index in sorted(self._crew.awaited):
            self._num_losses[index] += 1
        self._crew.awaited = set()
