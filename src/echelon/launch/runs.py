"""The runs of a folder: by which name each is called, how it stands, what it takes on disk."""

from __future__ import annotations

import fcntl
import json
import math
import os
import re
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from echelon.environment import regular_files
from echelon.errors import UsageError
from echelon.spec import RUNS

STAMP = re.compile(r"(\d{8}-\d{6})-(.+-[0-9a-f]{4}(?:-\d+)?)")  # 20261125-100253-train-b53a, -1 where it was requeued
OURS = frozenset(
    {"plan.json", "order.json", "events.jsonl", "report.json", "logs", "node.pyz", "secret", "job.sh", "booking.json",
     "slurm.out"}
)  # fmt: skip
"""What echelon itself writes into a run directory: everything else is the user's."""
SILENT_SECONDS = 3600.0  # a run on another machine, whose lock is not seen here, writes an event more often than that


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One run directory."""

    path: str
    state: str
    """"running", "ended well", "failed (3)", "not started", "broken off", or "unknown" where that is not seen here."""
    began: float
    seconds: float | None
    num_ranks: int
    num_bytes: int
    foreign: tuple[str, ...]
    """Files that echelon has not written: checkpoints, for one."""

    @property
    def name(self) -> str:
        return short_name(self.path)

    @property
    def is_over(self) -> bool:
        return self.state not in ("running", "not started", "unknown")


def short_name(path: str) -> str:
    """Return how a run is called in messages: train-b53a; one in a folder that a person chose, by that folder.

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
    """Return the run directories of this folder, the newest last."""
    try:
        names = sorted(os.listdir(RUNS))
    except OSError:
        return []
    paths = [os.path.join(RUNS, name) for name in names if is_run(os.path.join(RUNS, name))]
    return sorted(paths, key=lambda path: (_began(path, os.stat(path).st_mtime), _number(_first_event(path), "time")))


def is_run(path: str) -> bool:
    """Say whether a folder is a run's: its first event, or the script of its job, is there."""
    return any(os.path.isfile(os.path.join(path, name)) for name in ("events.jsonl", "job.sh"))


def find(name: str) -> str:
    """Return the run directory that a person means: a path, a name, or the part of a name that only one run has."""
    for path in (name, os.path.join(RUNS, name)):
        if name and is_run(path):
            return path.rstrip("/")
    word = name.removeprefix(f"{RUNS}/").rstrip("/")
    paths = all_runs()
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


def read(path: str) -> Run:
    """Return how a run stands, from its directory alone."""
    report, plan = _json(path, "report.json"), _json(path, "plan.json")
    return Run(
        path=path,
        state=_state(path, report),
        began=_began(path, os.stat(path).st_mtime),
        seconds=_number(report, "seconds") if "seconds" in report else None,
        num_ranks=int(
            _number(report, "ranks") or max(0, _number(plan, "num_nodes")) * max(0, _number(plan, "ranks_per_node"))
        ),
        num_bytes=_num_bytes(path),
        foreign=tuple(sorted(set(os.listdir(path)) - OURS)),
    )


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
    if _is_locked(events):
        return "running"
    if report:
        return f"failed ({report['exit_code']})" if report.get("exit_code") else "ended well"
    is_elsewhere = _first_event(path).get("node") != socket.gethostname()
    if is_elsewhere and time.time() - os.stat(events).st_mtime < SILENT_SECONDS:
        return "unknown"
    return "broken off"


def _is_locked(path: str) -> bool:
    """Say whether a supervisor lives that has the lock of its events."""
    try:
        with open(path, "rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        pass  # a file system without locks
    return False


def _first_event(path: str) -> dict[str, Any]:
    return _parsed(regular_files.first_line, os.path.join(path, "events.jsonl"))


def _json(path: str, name: str) -> dict[str, Any]:
    return _parsed(regular_files.read_text, os.path.join(path, name))


def _parsed(read: Callable[[str], str], path: str) -> dict[str, Any]:
    """Return what a file says; nothing where it is missing, broken, or not a run's."""
    try:
        value = json.loads(read(path))
    except (OSError, ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def _number(fields: dict[str, Any], name: str, otherwise: float = 0.0) -> float:
    value = fields.get(name, otherwise)
    return value if isinstance(value, (int, float)) and math.isfinite(value) else otherwise


def _num_bytes(path: str) -> int:
    """Return what would be free without the run: a file that other runs link to stays."""
    total = 0
    for folder, _, names in os.walk(path):
        for name in names:
            try:
                status = os.lstat(os.path.join(folder, name))
            except FileNotFoundError:
                continue  # a running run removes files
            total += status.st_size if status.st_nlink == 1 else 0
    return total
