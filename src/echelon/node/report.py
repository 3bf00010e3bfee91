"""The agent's report about a rank that has ended."""

import time
from typing import Any, Dict

from . import frames, processes
from .ranks import Attempt, Rank

MOST_CALLS = 8  # all ranks of a run report them at the same moment
MOST_THREADS_SECONDS, THREADS_SHARE = 30.0, 1 / 20  # between two looks at threads, and as a part of their time so far
ERROR_TO_EXIT_SECONDS = 10.0  # torch takes a second or more to shut down; an older traceback is unrelated to the exit


def of_exit(attempt: Attempt, rank: Rank) -> Dict[str, Any]:
    """Report the end of a rank, whatever its exit code."""
    failed = rank.status != 0
    called = rank.pulse.called(MOST_CALLS if failed else 1) if rank.pulse is not None else {}
    if rank.pulse is not None and (rank.status or 0) < 0:
        crash = frames.place(rank.pulse.crash())
        called = {**called, "crash": crash} if crash else called
    now, error_time = time.time(), rank.output.error_time
    return {
        "attempt": attempt.number,
        "rank": rank.rank,
        "status": rank.status,
        "why": "",
        "time": now,
        "error_time": error_time if failed and now - error_time < ERROR_TO_EXIT_SECONDS else 0.0,
        "oom_kills": processes.oom_kills() - attempt.oom_kills_before if failed else 0,
        "tail": rank.output.tail.decode("utf-8", "replace") if failed else "",
        "log_problem": rank.output.log_problem,
        "called": called,
        **_of_steps(rank),
    }


def _of_steps(rank: Rank) -> Dict[str, Any]:
    """Report the steps of a rank that PyTorch's optimizers made, and what the rank used."""
    measured = measures(rank)
    known: Dict[str, Any] = {"measures": measured} if measured else {}
    told = rank.pulse.notes() if rank.pulse is not None else []
    if told:
        known["notes"] = told
    if rank.pulse is None or not rank.pulse.steps:
        return known
    page = rank.pulse
    times = sorted(page.times().items())
    moments = {"first_step": page.first_at, "last_step": page.last_at}
    return {"steps": page.steps, **moments, "step_times": times, **known}


def measures(rank: Rank) -> Dict[str, float]:
    """Return what a rank has measured of its training, and what its process has used of the node.

    An ended process has left /proc: what it had used at the last look counts.
    """
    known: Dict[str, float] = {}
    if rank.pulse is not None and rank.pulse.steps:
        known = {**rank.pulse.measures(), "step_seconds": rank.pulse.last_at - rank.pulse.first_at}
    for name, value in processes.usage(rank.pid).items():
        rank.usage[name] = max(value, rank.usage.get(name, 0.0))
    if known:
        for name, value in _waits(rank).items():
            rank.waits[name] = value - rank.waits_before.setdefault(name, value)
    return {name: _short(value) for name, value in {**known, **rank.usage, **rank.waits}.items()}


def _waits(rank: Rank) -> Dict[str, float]:
    """Return what has held a rank up so far; its threads, which may be many, are looked at ever more rarely."""
    waits, now = processes.waits(rank.pid), time.monotonic()
    if waits and now >= rank.threads_due:
        rank.threads_began = rank.threads_began or now
        rank.threads_due = now + min(MOST_THREADS_SECONDS, (now - rank.threads_began) * THREADS_SHARE)
        waits["thread_wait_seconds"] = processes.wait_of_threads(rank.pid)
    return waits


def _short(value: float) -> float:
    """Return a number with at most seven digits, as an integer if it is one: the samples of all ranks are one file."""
    return int(value) if value == int(value) else float("%.7g" % value)


def of_no_start(attempt: Attempt, rank: int, why: str) -> Dict[str, Any]:
    """Report a rank that could not be started; the exit code is 127, as in a shell."""
    nothing = {"error_time": 0.0, "oom_kills": 0, "tail": "", "log_problem": "", "called": {}}
    return {"attempt": attempt.number, "rank": rank, "status": 127, "why": why, "time": time.time(), **nothing}
