"""The ranks of one attempt on this node: start, signals, end."""

import os
import signal
import time
from typing import Callable, Dict, List, Optional

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
