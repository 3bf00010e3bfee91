"""What the supervisor shows: the output of the ranks, and the progress of a start."""

from __future__ import annotations

import time
from collections.abc import Callable

from echelon.launch import failure, progress
from echelon.launch.attempt import Attempt
from echelon.launch.console import Console, ConsoleClosed
from echelon.launch.failure import Failure
from echelon.node.channel import Message
from echelon.spec import Plan


class Screen:
    """Pass the ranks' output to the console until nobody reads it."""

    def __init__(
        self, console: Console, *, on_broken_pipe: Callable[[], None], on_failure: Callable[[Failure], None]
    ) -> None:
        self._console = console
        self._on_broken_pipe = on_broken_pipe
        self._on_failure = on_failure
        self._is_closed = False

    def show(self, message: Message) -> None:
        """Show a part of a rank's output."""
        if self._is_closed:
            return
        data = message["data"].encode("utf-8", "surrogateescape")
        try:
            self._console.rank_output(message["rank"], message["stream"], data)
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
        self._console.progress(progress.text(plan, attempt, num_agents=num_agents, is_importing=is_importing))
