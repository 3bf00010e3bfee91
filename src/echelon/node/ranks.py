"""The ranks of one attempt on this node: start, signals, end."""

import os
import selectors
import signal
import time
from functools import partial
from typing import Callable, Dict, FrozenSet, List, Optional, Sequence, Tuple, Union

from . import processes, sweep
from .output import RankOutput
from .pulse_page import PulsePage


class Rank:
    """A process of the user's program."""

    def __init__(self, *, rank: int, local_rank: int, output: RankOutput) -> None:
        self.rank = rank
        self.local_rank = local_rank
        self.output = output
        self.pulse: Optional[PulsePage] = None  # None: a program that is no Python
        self.usage: Dict[str, float] = {}  # what it has used of the node, when the agent looked last
        self.waits_before: Dict[str, float] = {}  # its first step, as the agent has seen them
        self.waits: Dict[str, float] = {}  # after that
        self.threads_began = self.threads_due = 0.0  # when its threads were looked at first, and will be again
        self.pid = 0
        self.was_forked = False
        self.owed: List[int] = []  # signals that came after the fork was ordered and before it was reported
        self.status: Optional[int] = None  # exit code, or minus the signal that ended it

    @property
    def is_unborn(self) -> bool:
        """Say whether its fork is ordered but not yet reported."""
        return self.pid == 0 and self.status is None

    @property
    def is_alive(self) -> bool:
        return self.pid > 0 and self.status is None


class Attempt:
    """All ranks of this node in one attempt, until none of their processes is left."""

    def __init__(self, number: int, mark: str, spared: Callable[[], sweep.Spared]) -> None:
        self.number = number
        self.oom_kills_before = processes.oom_kills()
        self.ranks: List[Rank] = []
        self._mark = mark
        self._spared = spared
        self._kill_time: Optional[float] = None
        self._leftovers_told = False
        self._is_swept = False
        self.is_stopping = False
        self.is_over = False

    @property
    def sessions(self) -> List[int]:
        return [rank.pid for rank in self.ranks if rank.pid > 0]

    @property
    def alive(self) -> List[Rank]:
        return [rank for rank in self.ranks if rank.is_alive]

    def by_pid(self) -> Dict[int, Rank]:
        return {rank.pid: rank for rank in self.ranks if rank.is_alive}

    def signal(self, number: int) -> None:
        """Send a signal to the ranks; they pass it on to their own workers."""
        for rank in self.ranks:
            if rank.is_unborn:
                rank.owed.append(number)
            elif rank.is_alive:
                sweep.send(rank.pid, number)

    def stop(self, *, grace_seconds: float) -> None:
        """Ask the ranks to end; those that still run after the grace period are killed."""
        self.is_stopping = True
        deadline = time.monotonic() + grace_seconds
        self._kill_time = deadline if self._kill_time is None else min(self._kill_time, deadline)
        self.signal(signal.SIGTERM)

    def advance(self) -> Optional[float]:
        """Advance a stop; return the seconds until the next call, None if no call is needed."""
        if not self.is_stopping or self.is_over:
            return None
        now = time.monotonic()
        is_late = self._kill_time is not None and now >= self._kill_time
        if any(rank.is_unborn for rank in self.ranks):
            return 0.05
        if self.alive:
            if is_late:
                self._kill_groups()
            return 0.05 if is_late else max(0.0, (self._kill_time or now) - now)
        return self._end_leftovers(is_late=is_late)

    def _kill_groups(self) -> None:
        for rank in self.alive:
            try:
                os.killpg(rank.pid, signal.SIGKILL)
            except (ProcessLookupError, PermissionError):
                sweep.send(rank.pid, signal.SIGKILL)

    def _end_leftovers(self, *, is_late: bool) -> Optional[float]:
        left = sweep.leftovers(self._mark, set(self.sessions), self._spared())
        if not left and is_late and not self._is_swept:
            self._is_swept = True
            return sweep.PAUSE_SECONDS  # a process that becomes another program shows no mark in between
        if not left:
            self.is_over = True
            return None
        self._is_swept = False
        number = signal.SIGKILL if is_late else signal.SIGTERM
        if is_late or not self._leftovers_told:
            for pid in left:
                sweep.send(pid, number)
            self._leftovers_told = True
        return 0.05

    def close(self) -> None:
        for rank in self.ranks:
            rank.output.close()
            if rank.pulse is not None:
                rank.pulse.close()


class OutputMultiplexer:
    """The pipes of all ranks of a node, in the agent's loop."""

    def __init__(
        self, selector: selectors.BaseSelector, tell: Callable[..., None], is_stalled: Callable[[], bool]
    ) -> None:
        self._selector, self._tell, self._is_stalled = selector, tell, is_stalled
        self._shown: Optional[FrozenSet[int]] = frozenset()  # None: all ranks
        self._early: Optional[List[Tuple[str, bytes]]] = []  # output of imports from before the shown ranks are known
        self._paused: List[Tuple[RankOutput, int]] = []

    def show(self, ranks: Union[str, Sequence[int]], imports: RankOutput) -> None:
        """Forward the output of these ranks, or of "all"; earlier output of imports comes first."""
        self._shown = None if ranks == "all" else frozenset(int(rank) for rank in ranks)
        self.hear_all(imports)
        early, self._early = self._early or [], None
        for stream, data in early:
            self.forward_imports(stream, data)

    def forward(self, rank: int) -> Callable[[str, bytes], None]:

        def forward(stream: str, data: bytes) -> None:
            if self._shown is None or rank in self._shown:
                self._tell("output", rank=rank, stream=stream, data=data.decode("utf-8", "surrogateescape"))

        return forward

    def forward_imports(self, stream: str, data: bytes) -> None:
        """Forward the output of an import as rank 0's, as under plain python."""
        if self._early is None:
            self.forward(0)(stream, data)
        else:
            self._early.append((stream, data))

    def listen_to(self, output: RankOutput) -> None:
        for pipe in output.pipes:
            self._register(output, pipe)

    def hear_all(self, output: RankOutput) -> None:
        """Read all that the pipes hold now."""
        for pipe in list(output.pipes):
            while output.read(pipe):
                pass
            if pipe not in output.pipes:
                self._forget(pipe)

    def resume(self) -> None:
        """Resume the ranks that had to wait, once the supervisor reads again."""
        if self._is_stalled():
            return
        paused, self._paused = self._paused, []
        for output, pipe in paused:
            if pipe in output.pipes:
                self._register(output, pipe)

    def silence(self, attempt: Attempt) -> None:
        """Read the last output of an attempt and close its pipes."""
        for rank in attempt.ranks:
            self.hear_all(rank.output)
            for pipe in rank.output.pipes:
                self._forget(pipe)
        attempt.close()

    def _register(self, output: RankOutput, pipe: int) -> None:
        self._selector.register(pipe, selectors.EVENT_READ, partial(self._hear, output, pipe))

    def _hear(self, output: RankOutput, pipe: int) -> None:
        if self._is_stalled():
            self._selector.unregister(pipe)  # the rank blocks in write(), as with a full pipe of its own
            self._paused.append((output, pipe))
            return
        output.read(pipe)
        if pipe not in output.pipes:
            self._selector.unregister(pipe)

    def _forget(self, pipe: int) -> None:
        if pipe in self._selector.get_map():
            self._selector.unregister(pipe)
        self._paused = [entry for entry in self._paused if entry[1] != pipe]
