"""Follow a submitted job: its state, its output, its end."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import IO

from echelon.environment import regular_files
from echelon.errors import EchelonError, RunError
from echelon.hardware import files
from echelon.host import Host
from echelon.jobs.submit import OUTPUT
from echelon.scheduler.slurm import queue

POLL_SECONDS = (0.2, 10.0)
WAIT_SECONDS = 2.0  # a job that starts at once needs no message about waiting
NUM_LAST_LINES = 10
Say = Callable[[str], None]


def follow(number: str, run_directory: str, host: Host, say: Say, *, shows: IO[bytes] | None) -> int:
    """Wait for the end of a job, print its state and its output; return its exit code."""
    path = os.path.join(run_directory, OUTPUT)
    seen = 0
    told: set[str] = set()
    began = time.monotonic()
    pause, patience = POLL_SECONDS
    while True:
        state = _state(number, host)
        if state is not None and (not state.is_waiting or time.monotonic() > began + WAIT_SECONDS):
            place = state.place(number)
            if place and place not in told:
                told.add(place)
                say(place)
        seen += _show_from(path, seen, shows)
        if state is not None and state.is_over:
            time.sleep(POLL_SECONDS[0])  # the shared file system may still be delivering the last words
            _show_from(path, seen, shows)
            _say_end(state, number, run_directory, say, is_shown=shows is not None)
            return state.exit_code
        if state is not None and state.can_never_start:
            raise RunError(f"job {number} is in the queue but can never start", hint=f"scancel {number}")
        time.sleep(pause)
        pause = min(pause * 1.5, patience if seen == 0 or shows is None else 1.0)


def _say_end(state: queue.JobState, number: str, run_directory: str, say: Say, *, is_shown: bool) -> None:
    """Say how the job ended: the reason that its run reports, and the last lines unless they were shown."""
    why = _why(run_directory) if state.exit_code else ""
    say(state.end(number) + (f": {why}" if why else ""))
    path = os.path.join(run_directory, OUTPUT)
    if not state.exit_code or is_shown:
        return
    for line in _last_lines(path):
        say(f"  │ {line}")
    say(f"the output of the job is in {os.path.relpath(path)}")


def _why(run_directory: str) -> str:
    """Return the reason in report.json; a requeued job has a run directory for each start."""
    folder, name = os.path.split(run_directory)
    again = sorted((other for other in files.names(folder) if other.startswith(f"{name}-")), key=len)
    report = regular_files.read_object(os.path.join(folder, (again or [name])[-1], "report.json"))
    place = f"rank {report['rank']} on {report['node']}: " if report.get("rank", -1) >= 0 and report.get("node") else ""
    words = [str(report[key]) for key in ("cause", "detail") if report.get(key)]
    return place + ": ".join(words) if words else ""


def _last_lines(path: str) -> list[str]:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read().splitlines()[-NUM_LAST_LINES:]
    except OSError:
        return []


def _state(number: str, host: Host) -> queue.JobState | None:
    try:
        return queue.state(host, number)
    except queue.UnknownJob:
        raise RunError(f"Slurm no longer knows job {number}; its run directory shows how it ended") from None
    except EchelonError:
        return None  # the controller may be busy for a moment


def _show_from(path: str, start: int, shows: IO[bytes] | None) -> int:
    if shows is None:
        return 0
    try:
        with open(path, "rb") as file:
            file.seek(start)
            data = file.read()
    except OSError:
        return 0  # the job has not begun
    shows.write(data)
    shows.flush()
    return len(data)
