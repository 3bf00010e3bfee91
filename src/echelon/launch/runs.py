"""The runs of a folder: the name, the state and the size of each."""

from __future__ import annotations

import math
import os
import re
import socket
import time
from dataclasses import dataclass
from typing import Any

from echelon.environment import regular_files
from echelon.errors import UsageError
from echelon.launch.failure import HANDED_OVER
from echelon.node import private
from echelon.spec import RUNS

STAMP = re.compile(r"(\d{8}-\d{6})-(.+-[0-9a-f]{4}(?:-\d+)?)")  # 20261125-100253-train-b53a, with -1 after a requeue
OURS = frozenset(
    {"plan.json", "agent.json", "events.jsonl", "report.json", "logs", "node.pyz", "secret", "job.sh", "booking.json",
     "slurm.out", "chain.json", "chain.jsonl", "lease.json", "jobs", "sources.json", "samples.jsonl",
     "lines.json", "track.json", "track.log"}
)  # fmt: skip
"""Files that echelon writes into a run directory; all others are the user's."""
_TOKEN = re.compile(r"watch-[\w.-]+\.token")  # of `echelon watch --web`, which was killed if it is still there
RUNNING = "running"
SILENT_SECONDS = 3600.0  # a run on another machine, whose lock is invisible here, writes events more often


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSummary:
    """One run directory."""

    path: str
    state: str
    """"running", "ended well", "failed (3)", "not started", "broken off"; "handed over" to the next job of a chain;
    "unknown" if it cannot be seen here.
    """
    began: float
    seconds: float | None
    num_ranks: int
    num_bytes: int
    foreign: tuple[str, ...]
    """Files that echelon did not write, such as checkpoints."""

    @property
    def name(self) -> str:
        return short_name(self.path)

    @property
    def is_over(self) -> bool:
        return self.state not in (RUNNING, "not started", "unknown")


def short_name(path: str) -> str:
    """Return a run's name for messages: train-b53a; for a run in a folder that a user chose, the folder's name.

    >>> short_name("echelon-runs/20261125-100253-train-b53a")
    'train-b53a'
    """
    folder, name = os.path.split(os.path.abspath(path))
    stamped = STAMP.fullmatch(name)
    if stamped and folder == os.path.join(os.getcwd(), RUNS):
        return stamped.group(2)
    short = os.path.relpath(path)
    return os.path.abspath(path) if short.startswith("..") else short


def all_runs() -> list[str]:
    """Return the run directories of this folder, newest last."""
    try:
        names = sorted(os.listdir(RUNS))
    except OSError:
        return []
    paths = [os.path.join(RUNS, name) for name in names if is_run(os.path.join(RUNS, name))]
    return sorted(paths, key=lambda path: (_began(path, os.stat(path).st_mtime), _number(_first_event(path), "time")))


def is_run(path: str) -> bool:
    """Say whether a folder is a run directory: it holds events, or a job's script."""
    return any(os.path.isfile(os.path.join(path, name)) for name in ("events.jsonl", "job.sh"))


def find(name: str) -> str:
    """Return the run directory for a path, a name, a part of a name that only one run has, or the number of a job."""
    for path in (name, os.path.join(RUNS, name)):
        if name and is_run(path):
            return path.rstrip("/")
    word = name.removeprefix(f"{RUNS}/").rstrip("/")
    paths = all_runs()
    of_job = [path for path in paths if word and _json(path, "plan.json").get("job_id") == word]
    if of_job:
        return of_job[-1]
    matching = [path for path in paths if word and word in os.path.basename(path)]
    exact = [path for path in matching if short_name(path) == word] or matching
    if len(exact) == 1:
        return exact[0]
    if exact:
        names = ", ".join(os.path.basename(path) for path in exact[-3:])
        more = f" and {len(exact) - 3} more" if len(exact) > 3 else ""
        raise UsageError(f"{name} is a part of {len(exact)} names: {names}{more}", hint=short_name(exact[-1]))
    latest = ", ".join(short_name(path) for path in paths[-3:])
    known = f"; the latest runs are {latest}" if paths else f", and {RUNS}/ of this folder has no runs"
    raise UsageError(f"there is no run {name or repr('')}{known}", hint="echelon runs")


def read(path: str) -> RunSummary:
    """Return the state of a run, from its directory alone."""
    report, plan = _json(path, "report.json"), _json(path, "plan.json")
    return RunSummary(
        path=path,
        state=_state(path, report),
        began=_began(path, os.stat(path).st_mtime),
        seconds=_number(report, "seconds") if "seconds" in report else None,
        num_ranks=int(
            _number(report, "ranks") or max(0, _number(plan, "num_nodes")) * max(0, _number(plan, "ranks_per_node"))
        ),
        num_bytes=_num_bytes(path),
        foreign=tuple(sorted(name for name in set(os.listdir(path)) - OURS if not _TOKEN.fullmatch(name))),
    )


def state(path: str) -> str:
    """Return the state of a run as `read` does, without a look at each of its files."""
    return _state(path, _json(path, "report.json"))


def _began(path: str, otherwise: float) -> float:
    stamped = STAMP.fullmatch(os.path.basename(path))
    if stamped is None:
        return _number(_first_event(path), "time", otherwise)
    try:
        return time.mktime(time.strptime(stamped.group(1), "%Y%m%d-%H%M%S"))
    except ValueError:
        return otherwise


def _state(path: str, report: dict[str, Any]) -> str:
    events = os.path.join(path, "events.jsonl")
    if not os.path.exists(events):
        return "not started"
    if private.is_run_alive(path):
        return RUNNING
    if report.get("cause") == HANDED_OVER:
        return HANDED_OVER
    if report:
        return f"failed ({report['exit_code']})" if report.get("exit_code") else "ended well"
    is_elsewhere = _first_event(path).get("node") != socket.gethostname()
    if is_elsewhere and time.time() - os.stat(events).st_mtime < SILENT_SECONDS:
        return "unknown"
    return "broken off"


def _first_event(path: str) -> dict[str, Any]:
    try:
        return regular_files.json_object(regular_files.first_line(os.path.join(path, "events.jsonl")))
    except OSError:
        return {}


def _json(path: str, name: str) -> dict[str, Any]:
    return regular_files.read_object(os.path.join(path, name))


def _number(fields: dict[str, Any], name: str, otherwise: float = 0.0) -> float:
    value = fields.get(name, otherwise)
    return value if isinstance(value, (int, float)) and math.isfinite(value) else otherwise


def _num_bytes(path: str) -> int:
    """Return the bytes that removing the run would free; a file that other runs link to stays."""
    total = 0
    for folder, _, names in os.walk(path):
        for name in names:
            try:
                status = os.lstat(os.path.join(folder, name))
            except FileNotFoundError:
                continue  # a running run removes files
            total += status.st_size if status.st_nlink == 1 else 0
    return total
