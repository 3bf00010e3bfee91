"""Append samples of a run to a file of its directory: the steps and measures of all ranks, the load of the devices.

Each line is a JSON object. The first says the format. A number that is the same for all ranks stands once, others as a
list with one for each rank. The supervisor is the only writer; the lines become rarer as the run lasts, and those with
the measures of each rank become rarer in a large run.
"""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Callable
from typing import Any

from echelon.launch.crew import AgentConnection
from echelon.launch.line_times import LineTimes
from echelon.launch.lookouts import NOBODY, Host, Load, NodeFinding
from echelon.launch.run_directory import RunDirectory
from echelon.node.channel import Message

NAME = "samples.jsonl"
FORMAT = 1
LEAST_SECONDS, MOST_SECONDS = 0.9, 30.0  # agents tell each second, and not to the millisecond
SHARE = 1 / 200
"""The time between two lines, as a part of the age of the run: a file of a day has some thousand lines."""
LEAST_SECONDS_OF_DISK, DISK_SHARE = 20.0, 1 / 1000
"""The least time between two looks at the run's files, and the most part of the time that they take."""
LINES_SECONDS = 2.0  # the least time between two states of the ranks' lines: their file is written anew


MOST_DETAILED = 64
"""Ranks whose measures stand in each line; with more of them, in one of so many lines that the file grows no faster."""
Measures = dict[str, list["float | None"]]  # name → a value for each rank, None where it is unknown


class Samples:
    """What the agents' pulses say, in one file."""

    def __init__(self, directory: RunDirectory, clock: Callable[[], float] = time.time) -> None:
        self._directory = directory
        self._clock = clock
        self._began = self._written = clock()
        self._disk_due = self._began + LEAST_SECONDS_OF_DISK
        self._attempt = -1
        self._num_lines = 0
        self._steps: dict[int, int] = {}
        self._measures: dict[int, dict[str, float | None]] = {}
        self._notes: dict[int, int] = {}
        """How many notes of each rank are known."""
        self._fresh: list[dict[str, Any]] = []
        self._lines = LineTimes(directory)
        self._lines_written = self._began
        self._load_written: Load = {}
        self._host_written: Host = {}
        self.load: Load = {}
        """The load of the devices of each node so far, which another part of the supervisor keeps up to date."""
        self.host: Host = {}
        """The same of the nodes themselves."""
        self.observer = NOBODY
        """Judges each line; what it returns is said."""
        self.say: Callable[[str], None] = lambda _: None

    def hear(self, member: AgentConnection, message: Message) -> None:
        """Take the steps and measures of an agent's pulse, and write a line if it is time."""
        if message["attempt"] != self._attempt:
            self._attempt, self._steps, self._measures, self._notes = message["attempt"], {}, {}, {}
        if member.share is not None:
            self._steps.update(zip(member.share.ranks, message["steps"], strict=False))
            for place, rank in enumerate(member.share.ranks):
                self._measures[rank] = {
                    name: values[place] if place < len(values) else None for name, values in message["measures"].items()
                }
        for rank, notes in message.get("notes", {}).items():
            self.note(int(rank), notes)
        if "lines" in message:
            self._lines.hear(self._attempt, message["lines"])
        now = self._clock()
        pause = min(MOST_SECONDS, max(LEAST_SECONDS, (now - self._began) * SHARE))
        if now - self._written >= (LEAST_SECONDS if self._fresh else pause):
            self._write(now)
        if now - self._lines_written >= max(pause, LINES_SECONDS):
            self._lines_written = now
            self._lines.write()

    def note(self, rank: int, notes: list[dict[str, Any]]) -> None:
        """Take all notes of a rank about bad steps; those that are new stand in the next line."""
        self._fresh += [{"rank": rank, **note} for note in notes[self._notes.get(rank, 0) :]]
        self._notes[rank] = len(notes)

    def hear_exit(self, message: Message) -> Message:
        """Take the notes of a rank that has ended; return the rest of the message."""
        self.note(message["rank"], message.get("notes", []))
        return {name: value for name, value in message.items() if name != "notes"}

    def _write(self, now: float) -> None:
        self._written = now
        ranks = sorted(self._steps)
        sample: dict[str, Any] = {"time": round(now, 1), "attempt": self._attempt, "ranks": len(ranks)}
        sample["steps"] = _once([self._steps[rank] for rank in ranks])
        names = sorted({name for values in self._measures.values() for name in values})
        measures = {name: [self._measures.get(rank, {}).get(name) for rank in ranks] for name in names}
        sample.update(_of_all(measures))
        if measures and self._num_lines % math.ceil(len(ranks) / MOST_DETAILED) == 0:
            sample["measures"] = {name: _once(values) for name, values in measures.items()}
        self._num_lines += 1
        if self._fresh:
            sample["notes"], self._fresh = self._fresh, []
        load = {node: rows for node, rows in self.load.items() if self._load_written.get(node) is not rows}
        host = {node: row for node, row in self.host.items() if self._host_written.get(node) is not row}
        sample.update({name: fresh for name, fresh in (("load", load), ("host", host)) if fresh})
        if now >= self._disk_due:
            began = time.monotonic()
            sample.update(self._directory.disk_use())
            self._disk_due = now + max(LEAST_SECONDS_OF_DISK, (time.monotonic() - began) / DISK_SHARE)
        self._load_written, self._host_written = dict(self.load), dict(self.host)
        path = self._directory.file(NAME)
        head = "" if os.path.exists(path) else json.dumps({"format": FORMAT}) + "\n"
        self._directory.append(NAME, head + json.dumps(sample) + "\n")
        seen = self.observer.judge({**sample, "lines": self._lines.known})
        if seen is not None:
            self._tell(seen)

    def _tell(self, seen: NodeFinding) -> None:
        self._directory.event("fact", **seen.fields)
        self.say(f"note: {seen.line}")

    def close(self) -> None:
        """Write the last line, and say what was not said yet."""
        if self._steps or self.load or self.host or self._fresh:
            self._write(self._clock())
        self._lines.write()
        for seen in self.observer.rest():
            self._tell(seen)


def _once(values: list[Any]) -> Any:
    """Return one value in place of equal ones."""
    return values[0] if len(set(values)) == 1 else values


def _of_all(measures: Measures) -> dict[str, float]:
    """Return what a curve is drawn of: the mean loss, and the samples of all ranks so far."""
    losses = [loss for loss in measures.get("loss", ()) if loss is not None]
    samples = [number for number in measures.get("samples", ()) if number is not None]
    told = {"loss": float(f"{sum(losses) / len(losses):.6g}")} if losses else {}
    return {**told, **({"samples": sum(samples)} if samples else {})}
