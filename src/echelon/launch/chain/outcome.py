"""How one job of a chain ended, and whether the next one goes on; read from the run directory."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from echelon.environment import regular_files
from echelon.launch import failure
from echelon.launch.failure import HANDED_OVER
from echelon.launch.order import SCRIPT

_OF_THE_MACHINE = frozenset({failure.LOST_NODE, failure.LOST_AGENT, failure.SLURM})
"""Causes that another job does not meet again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The end of one job."""

    text: str
    exit_code: int
    goes_on: bool
    save_seconds: float = 0.0
    """From the signal until all ranks had saved; 0: nobody measured it."""


def read(run_directory: str, exit_code: int) -> Outcome:
    """Judge the job whose supervisor returned `exit_code`."""
    report = _json(os.path.join(run_directory, "report.json"))
    charge, seconds = _order(os.path.join(run_directory, "events.jsonl"))
    cause = str(report.get("cause", ""))
    if cause == HANDED_OVER:
        return Outcome(text=HANDED_OVER, exit_code=exit_code, goes_on=True, save_seconds=seconds)
    if charge == SCRIPT:
        text = "the script took the signal before the end of the job, and ended"
        return Outcome(text=text, exit_code=exit_code, goes_on=True)
    if exit_code == 0:
        return Outcome(text="the training has ended", exit_code=0, goes_on=False)
    if charge:  # Slurm may end ranks before they have saved
        text = f"told to save and end, but did not: {cause or exit_code}"
        return Outcome(text=text, exit_code=exit_code, goes_on=True)
    preempted = cause == failure.INTERRUPTED and report.get("detail") == signal.SIGTERM.name
    return Outcome(
        text=f"{cause}: {report.get('detail', '')}" if cause else f"exit code {exit_code}",
        exit_code=exit_code,
        goes_on=cause in _OF_THE_MACHINE or preempted,
    )


def _order(path: str) -> tuple[str, float]:
    """Return who was in charge of the last order, empty without one, and the seconds from it to the end."""
    charge, given, ended = "", 0.0, 0.0
    try:
        lines = regular_files.read_text(path).splitlines()
    except OSError:
        return "", 0.0
    for line in lines:
        event = _parsed(line)
        if event.get("event") == "order":
            charge, given = str(event["charge"]), float(event["time"])
        elif event.get("event") == "exit":
            ended = float(event["time"])
    return charge, max(0.0, ended - given) if given and ended else 0.0


def _json(path: str) -> Mapping[str, Any]:
    try:
        return _parsed(regular_files.read_text(path))
    except OSError:
        return {}


def _parsed(text: str) -> Mapping[str, Any]:
    try:
        value = json.loads(text)
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}
