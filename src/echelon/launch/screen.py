"""What the supervisor shows: the output of the ranks, and the progress of a start."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Collection

from echelon.launch import failure
from echelon.launch.attempt import Attempt
from echelon.launch.console import Console, ConsoleClosed
from echelon.launch.failure import Failure
from echelon.launch.kept import KeeperLink, ShownOutput
from echelon.node.channel import Message
from echelon.spec import Plan


class Screen:
    """Pass the ranks' output to the console until nobody reads it."""

    def __init__(
        self, console: Console, shown: ShownOutput, *, on_broken_pipe: Callable[[], None],
        on_failure: Callable[[Failure], None],
    ) -> None:  # fmt: skip
        self._console = console
        self._shown = shown
        self._on_broken_pipe = on_broken_pipe
        self._on_failure = on_failure
        self._is_closed = False
        self._has_begun = False
        self._num_bytes: Counter[int] = Counter()

    def show(self, message: Message) -> None:
        """Show a part of a rank's output."""
        self._show(message["rank"], message["stream"], message["data"].encode("utf-8", "surrogateescape"))

    def begin(self, kept: KeeperLink, reason: Failure | None, logs: str, ranks: Collection[int] | None) -> None:
        """Begin to show a new attempt, after the rest of the one before, which failed for this reason."""
        is_of_lost_supervisor = kept.num_earlier_supervisors > 0 and not self._has_begun
        if is_of_lost_supervisor or _is_lost_agent(reason):
            self._catch_up(logs, ranks, calm_seconds=0.2)
        self._has_begun = True
        self._shown.clear()
        self._num_bytes.clear()

    def end(self, outcome: Failure | None, logs: str, ranks: Collection[int] | None) -> None:
        """Show the rest of the last attempt."""
        if _is_lost_agent(outcome):
            self._catch_up(logs, ranks, calm_seconds=1.0)
        self._console.finish_output()
        self._console.clear()

    def _catch_up(self, logs: str, ranks: Collection[int] | None, *, calm_seconds: float) -> None:
        """Show what ranks printed while nobody passed it on; their logs do not say to which of two streams."""
        self._console.finish_output()
        show = lambda rank, data: self._show(rank, "stdout", data)  # noqa: E731
        self._shown.catch_up(logs, ranks, show, calm_seconds=calm_seconds)
        self._console.finish_output()

    def _show(self, rank: int, stream: str, data: bytes) -> None:
        if self._is_closed:
            return
        self._num_bytes[rank] += len(data)
        try:
            self._console.rank_output(rank, stream, data)
            self._shown.set(rank, self._num_bytes[rank] - self._console.held_bytes(rank))
        except ConsoleClosed as error:
            self._is_closed = True
            if error.is_pipe:
                self._on_broken_pipe()
            elif not error.is_unread:
                self._on_failure(Failure(cause=failure.NO_OUTPUT, detail=str(error), time=time.time()))

    def show_progress(self, plan: Plan, attempt: Attempt, *, num_agents: tuple[int, int], num_imported: int) -> None:
        """Show how far the start of an attempt has come; nothing if all ranks run."""
        if attempt.is_running and attempt.num_started >= len(attempt.alive):
            self._console.clear()
            return
        is_importing = plan.launch == "warm" and num_imported < num_agents[1]
        self._console.progress(text(plan, attempt, num_agents=num_agents, is_importing=is_importing))


def _is_lost_agent(reason: Failure | None) -> bool:
    return reason is not None and reason.cause == failure.LOST_AGENT


def text(plan: Plan, attempt: Attempt, *, num_agents: tuple[int, int], is_importing: bool) -> str:
    """Return the line; `num_agents` holds the number of agents that joined, and the number expected."""
    num_joined, num_wanted = num_agents
    parts = [f"{num_joined}/{num_wanted} nodes up" if num_wanted > 1 else "starting"]
    packages = list(dict.fromkeys(name.replace(":", ".").partition(".")[0] for name in plan.preload))
    if is_importing and packages:
        parts.append("importing " + ", ".join(packages))
    if attempt.is_running:
        parts.append(f"{attempt.num_started}/{len(attempt.alive)} ranks started")
    return " · ".join(parts)
