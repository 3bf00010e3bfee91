"""Tell the supervisor the steps of this node's ranks, and when they made one, wrote or worked last; collect stacks."""

import threading
import time
from typing import Any, Callable, Dict, List, Mapping, Optional, Tuple, Union

from ..environment import memory_left
from . import flight_recorder, frames, processes, report
from .ranks import Attempt, Rank
from .script_lines import ScriptLines

OFF, AUTO = "off", "auto"
AT_END = -1  # the round of stacks that a supervisor asks for when it stops the ranks
LONGEST_BEAT_SECONDS = 1.0
CALM_SECONDS = 30.0  # after so long without a step and a word, the ranks' use of cores and files is measured
LINES_SECONDS, MOST_LINES_SECONDS = 2.0, 30.0  # between two tellings of the ranks' lines: rarer as the run lasts
LINES_SHARE = 1 / 50  # the same, as a part of the age of the attempt
PAUSE_SECONDS = 3.0  # a turn of the agent's loop that is so late was a pause of the agent


class HangWatch:
    """The pulse of this node, sent to the supervisor at each beat."""

    def __init__(
        self,
        timeout: Union[float, str],
        environ: Mapping[str, str],
        tell: Callable[..., None],
        is_stalled: Callable[[], bool],
    ) -> None:
        self._environ = environ  # of the ranks
        seconds = timeout if isinstance(timeout, (int, float)) else 4 * CALM_SECONDS
        self._beat = min(LONGEST_BEAT_SECONDS, max(0.1, seconds / 10))
        self._calm = min(CALM_SECONDS, seconds / 4)
        self._tell = tell
        self._is_stalled = is_stalled
        self._lines = ScriptLines()
        self._clear(None, time.monotonic())

    def _clear(self, attempt: Optional[Attempt], now: float) -> None:
        self._attempt = attempt
        self._began = time.time()
        self._counts: Dict[int, Tuple[int, int]] = {}
        self._num_notes: Dict[str, int] = {}
        self._lines_at = now
        self._next = self._last = self._quiet_since = self._step_at = now
        self._longest_seconds = 0.0
        self._has_stepped = False
        self._work = Work(now)

    def look(self, attempt: Optional[Attempt]) -> Optional[float]:
        """Send a pulse if it is time; return the seconds until the next one, None for never."""
        if attempt is None or attempt.is_stopping:
            return None
        now = time.monotonic()
        if attempt is not self._attempt:
            self._clear(attempt, now)
        if now < self._next:
            return self._next - now
        self._forgive_pause(now)
        self._next = now + self._beat
        self._note_progress(attempt, now)
        if now - self._quiet_since >= self._calm:
            self._work.look([rank.pid for rank in attempt.alive], now)
        else:
            self._work = Work(now)
        self._send(attempt.number, now, attempt.alive if now >= self._lines_at else [])
        return self._beat

    def _forgive_pause(self, now: float) -> None:
        """Count no pause of the agent as silence of its ranks: the same may have stopped both."""
        if now - self._last > self._beat + PAUSE_SECONDS:
            self._quiet_since = self._step_at = now
            self._work = Work(now)
        self._last = now

    def _note_progress(self, attempt: Attempt, now: float) -> None:
        counts = {
            rank.rank: (rank.pulse.steps if rank.pulse is not None else 0, rank.output.num_bytes)
            for rank in attempt.ranks
        }
        if counts != self._counts or self._is_stalled():
            self._quiet_since = now
        before, after = _steps(self._counts), _steps(counts)
        if after != before:
            if self._has_stepped:
                self._longest_seconds = max(self._longest_seconds, now - self._step_at)
            self._has_stepped = self._has_stepped or after > 0
            self._step_at = now
        self._counts = counts

    def tell_end(self, attempt: Attempt, rank: Rank) -> None:
        """Send in which lines a rank was that has ended."""
        if attempt is self._attempt:
            self._send(attempt.number, time.monotonic(), [rank])

    def _send(self, number: int, now: float, in_lines: List[Rank]) -> None:
        """Send the pulse of all ranks, and the lines of some."""
        if in_lines:
            age = time.time() - self._began
            self._lines_at = now + min(MOST_LINES_SECONDS, max(LINES_SECONDS, age * LINES_SHARE))
        lines = {"lines": self._lines.of(in_lines)} if in_lines else {}
        self._tell(
            "pulse",
            attempt=number,
            quiet_seconds=now - self._quiet_since,
            others_idle_seconds=now - self._work.others_at,
            longest_seconds=self._longest_seconds,
            has_stepped=self._has_stepped,
            steps=[steps for _, (steps, _) in sorted(self._counts.items())],
            measures=self._measures(),
            **self._notes(),
            **lines,
        )

    def _notes(self) -> Dict[str, Dict[str, Any]]:
        ranks = self._attempt.ranks if self._attempt is not None else []
        notes = {str(rank.rank): rank.pulse.notes() for rank in ranks if rank.pulse is not None}
        told = {rank: rows for rank, rows in notes.items() if len(rows) > self._num_notes.get(rank, 0)}
        self._num_notes.update((rank, len(rows)) for rank, rows in told.items())
        return {"notes": told} if told else {}

    def _measures(self) -> Dict[str, List[Optional[float]]]:
        """Return what the ranks of this node know of their training: by name, a value for each rank, None: unknown."""
        ranks = self._attempt.ranks if self._attempt is not None else []
        of_ranks = [report.measures(rank) for rank in sorted(ranks, key=lambda rank: rank.rank)]
        if of_ranks:
            left = {"host_bytes_left": float(memory_left.available_bytes())}
            of_ranks = [{**values, **left} for values in of_ranks]
        names = sorted({name for values in of_ranks for name in values})
        return {name: [values.get(name) for values in of_ranks] for name in names}

    def collect(self, attempt: Optional[Attempt], number: int) -> None:
        """Send where each rank of this node is."""
        ranks: List[Dict[str, Any]] = []
        now = time.monotonic()

        def ask(rank: Rank) -> None:
            ranks.append(of_rank(rank, now - self._work.own_at(rank.pid), self._environ, self._began))

        threads = [threading.Thread(target=ask, args=[rank]) for rank in (attempt.alive if attempt is not None else ())]
        for thread in threads:  # each rank takes its time to answer
            thread.start()
        for thread in threads:
            thread.join()
        self._tell("stacks", attempt=attempt.number if attempt is not None else -1, round=number, ranks=ranks)


def _steps(counts: Dict[int, Tuple[int, int]]) -> int:
    return sum(steps for steps, _ in counts.values())


MOST_CHILDREN = 8
FROZEN = ("T", "t", "D", "Z")  # such a process answers no signal


def of_rank(rank: Rank, idle_seconds: float, environ: Mapping[str, str], began: float) -> Dict[str, Any]:
    facts = processes.facts(rank.pid)
    threads, why = _ask(rank, rank.pid, facts["state"])
    children = processes.descendants([rank.pid])[rank.pid]
    return {
        "rank": rank.rank,
        "pid": rank.pid,
        "idle_seconds": idle_seconds,
        "collective": flight_recorder.pending(rank.rank, environ, began),
        "steps": rank.pulse.steps if rank.pulse is not None else 0,
        **facts,
        "threads": threads,
        "why": why,
        "text": _text(threads),
        "children": [_child(rank, child.pid) for child in children[:MOST_CHILDREN]],
    }


def _child(rank: Rank, pid: int) -> Dict[str, Any]:
    facts = processes.facts(pid)
    threads, why = _ask(rank, pid, facts["state"])
    return {"pid": pid, **facts, "threads": threads, "why": why, "text": _text(threads)}


def _ask(rank: Rank, pid: int, state: str) -> Tuple[List[frames.Thread], str]:
    if state in FROZEN:
        return [], processes.STATES[state]
    if rank.pulse is None:
        return [], "it is no Python that echelon has started"
    return rank.pulse.ask(pid)


def _text(threads: List[frames.Thread]) -> str:
    """Return the script's line of code."""
    return frames.source(threads[0].frames) if threads else ""


LEAST_CORE_SHARE = 0.02  # threads that only look whether there is something to do use less than 1 % of a core
LEAST_BYTES_PER_SECOND = 1 << 14


class Work:
    """The last times at which ranks themselves used a core, and at which they did other work.

    A rank that waits for other ranks may use a core all the time: NCCL does. Its children, such as the compilers of
    `torch.compile`, and reading and writing are work in any case.
    """

    def __init__(self, now: float) -> None:
        self.others_at = now
        self._began = self._at = now
        self._own_at: Dict[int, float] = {}
        self._ticks: Dict[int, int] = {}
        self._bytes: Dict[int, int] = {}

    def own_at(self, pid: int) -> float:
        """Return when a rank itself used a core last, as far as the looks tell."""
        return self._own_at.get(pid, self._began)

    def look(self, pids: List[int], now: float) -> None:
        """Compare what the ranks and their descendants have used with the last look."""
        ticks, states = _ticks(pids)
        size = {pid: processes.io_bytes(pid) for pid in ticks}
        seconds = max(now - self._at, 0.001)
        least = LEAST_CORE_SHARE * seconds * processes.CLOCK_TICKS
        if self._ticks:
            used = {
                pid: number - self._ticks.get(pid, 0 if pid not in pids else number) for pid, number in ticks.items()
            }
            moved = sum(size[pid] - self._bytes[pid] for pid in size if pid in self._bytes)
            others = sum(number for pid, number in used.items() if pid not in pids)
            if others > least or moved > LEAST_BYTES_PER_SECOND * seconds:
                self.others_at = now
            self._own_at.update((pid, now) for pid in states if used[pid] > least or states[pid] == "R")
        else:
            self.others_at = self._began = now
        self._at, self._ticks, self._bytes = now, ticks, size


def _ticks(pids: List[int]) -> Tuple[Dict[int, int], Dict[int, str]]:
    """Return the ticks of all processes of the ranks, and the states of the ranks."""
    ticks: Dict[int, int] = {}
    states: Dict[int, str] = {}
    for pid, family in processes.descendants(pids).items():
        process = processes.read(pid)
        if process is not None:
            states[pid] = process.state
            family = [process, *family]
        ticks.update((one.pid, one.ticks) for one in family)
    return ticks, states
