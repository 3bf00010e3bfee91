"""Append samples of a run to one file of its directory: the steps of all ranks so far, and the load of the devices.

Each line is a JSON object. The first says the format. A line of steps has one number where all ranks have made equally
many, or else one for each rank. The supervisor is the only writer; the lines become rarer as the run lasts.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from typing import Any

from echelon.launch.crew import Member
from echelon.launch.lookouts import Load
from echelon.launch.run_directory import RunDirectory
from echelon.node.channel import Message

NAME = "samples.jsonl"
FORMAT = 1
LEAST_SECONDS, MOST_SECONDS = 1.0, 30.0
SHARE = 1 / 200
"""The time between two lines, as a part of the age of the run: a file of a day has some thousand lines."""


class Samples:
    """What the agents' pulses say, in one file."""

    def __init__(self, directory: RunDirectory, clock: Callable[[], float] = time.time) -> None:
        self._directory = directory
        self._clock = clock
        self._began = self._written = clock()
        self._attempt = -1
        self._steps: dict[int, int] = {}
        self._load_written: Load = {}
        self.load: Load = {}
        """The load of the devices of each node so far, which another part of the supervisor keeps up to date."""

    def hear(self, member: Member, message: Message) -> None:
        """Take the steps of an agent's pulse, and write a line if it is time."""
        if message["attempt"] != self._attempt:
            self._attempt, self._steps = message["attempt"], {}
        if member.share is not None:
            self._steps.update(zip(member.share.ranks, message["steps"], strict=False))
        now = self._clock()
        if now - self._written >= min(MOST_SECONDS, max(LEAST_SECONDS, (now - self._began) * SHARE)):
            self._write(now)

    def _write(self, now: float) -> None:
        self._written = now
        steps = [self._steps[rank] for rank in sorted(self._steps)]
        sample: dict[str, Any] = {"time": round(now, 1), "attempt": self._attempt}
        sample["steps"] = steps[0] if len(set(steps)) == 1 else steps
        fresh = {node: rows for node, rows in self.load.items() if self._load_written.get(node) is not rows}
        if fresh:
            sample["load"] = fresh
            self._load_written = dict(self.load)
        path = self._directory.file(NAME)
        head = "" if os.path.exists(path) else json.dumps({"format": FORMAT}) + "\n"
        self._directory.append(NAME, head + json.dumps(sample) + "\n")
