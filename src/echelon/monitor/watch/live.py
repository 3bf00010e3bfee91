"""Follow a run through the files of its directory, and show its state at any moment, also one of the past."""

from __future__ import annotations

import math
import os
import re
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any

from echelon.environment import regular_files
from echelon.monitor import lines, recorded, stragglers
from echelon.monitor.attempts import of_ranks
from echelon.monitor.lines import RankLines
from echelon.monitor.stragglers import Measures
from echelon.monitor.training import PARTS, REST
from echelon.monitor.watch.state import ALIVE, ENDED, FAILED, LOST, DeviceState, NodeState, RankState, RunState

MOST_POINTS = 240  # the points that curves keep
STRAGGLER_SECONDS = 10.0  # the same for the rank that makes the others wait: of a shorter time, chance decides
MOST_FACTS = 50
MOST_MEASURED = 8  # samples with the measures of all ranks that one look takes
WINDOW_SECONDS = 5.0  # the least time over which shares and rates are taken


class Live:
    """The state of a run, from its events and samples so far."""

    def __init__(self, name: str, path: str) -> None:
        self._path = path
        self._events = Tail(os.path.join(path, "events.jsonl"))
        self._samples = Tail(os.path.join(path, "samples.jsonl"), num_whole=MOST_MEASURED)
        self.state = RunState(name=name, status="")
        self._ranks: dict[int, RankState] = {}
        self._nodes: dict[str, NodeState] = {}
        self._losses: deque[float] = deque(maxlen=MOST_POINTS)
        self._rates: deque[float] = deque(maxlen=MOST_POINTS)
        self._kept: dict[str, Any] = {}
        """What lines.json has."""
        self._steps: list[int] = []
        """Of each rank, in the newest sample."""
        self._base: tuple[float, list[int], list[Measures]] | None = None
        self._base_lines: dict[int, RankLines] = {}
        self._before: tuple[float, int, float | None] | None = None

    def look(self) -> RunState:
        """Take what was written since the last look, and return the present state."""
        self._kept = recorded.lines(self._path)
        state = self.take([*self._events.look(), *self._samples.look()])
        in_lines = self._in_lines()
        for number, rank in self._ranks.items():
            now = in_lines[number].now if number in in_lines else None
            rank.line = now.words if now is not None and rank.status == ALIVE else ""
        return state

    def _in_lines(self) -> dict[int, RankLines]:
        return lines.of_attempt(self._kept, self.state.attempt)

    def all_lines(self) -> list[dict[str, Any]]:
        """Return all lines so far in the order of their times, to play them again; the state stays as it is."""
        tails = [Tail(os.path.join(self._path, file)) for file in ("events.jsonl", "samples.jsonl")]
        return sorted((line for tail in tails for line in tail.look()), key=lambda line: float(line["time"]))

    def take(self, lines: Iterable[dict[str, Any]]) -> RunState:
        lines = list(lines)
        measured = [place for place, line in enumerate(lines) if "measures" in line]
        old = set(measured[:-MOST_MEASURED])  # a look at a run of a day takes only the newest ones
        for place, line in enumerate(lines):
            try:
                self._take({**line, "measures": None} if place in old else line)
            except (KeyError, TypeError, ValueError, IndexError):
                continue  # a line that echelon did not write, or one of a later version
        for number, made in enumerate(self._steps):
            if number in self._ranks:
                self._ranks[number].steps = max(int(made), self._ranks[number].steps)
        self.state.losses, self.state.rates = list(self._losses), list(self._rates)
        self.state.nodes = [node for node in self._nodes.values() if node.ranks or node.devices]
        return self.state

    def _take(self, line: dict[str, Any]) -> None:
        moment = float(line["time"])
        self.state.began = self.state.began or moment
        self.state.now = max(self.state.now, moment)
        if "event" not in line:
            self._take_sample(line, moment)
            return
        take: dict[str, Callable[[dict[str, Any]], None]] = {
            "agent": self._join,
            "attempt": self._begin_attempt,
            "started": self._start,
            "exit": self._exit,
            "agent lost": self._lose,
            "fact": lambda event: self._say(moment, str(event["line"])),
            "finding": lambda event: self._say(moment, str(event.get("message") or event.get("line") or event)),
            "restart": lambda event: self._say(moment, f"restart after: {event['cause']} {event.get('error', '')}"),
            "end": self._end,
        }
        if line["event"] in take:
            take[line["event"]](line)

    def _say(self, moment: float, text: str) -> None:
        passed = max(0, int(moment - self.state.began))
        said = f"{passed // 3600:02}:{passed // 60 % 60:02}:{passed % 60:02} {text.strip()}"
        self.state.facts = [*self.state.facts, said][-MOST_FACTS:]

    def _join(self, event: dict[str, Any]) -> None:
        node = self._nodes.setdefault(str(event["node"]), NodeState(name=str(event["node"])))
        node.is_lost = False
        if not node.devices:
            node.devices = [DeviceState(number=number) for number in range(int(event.get("devices") or 0))]

    def _begin_attempt(self, event: dict[str, Any]) -> None:
        self.state.attempt, self.state.num_ranks = int(event["number"]), int(event.get("ranks") or 0)
        self._ranks = {rank: RankState(rank=rank) for rank in range(self.state.num_ranks)}
        self._base = self._before = None
        self._steps = []
        for node in self._nodes.values():
            node.ranks = []

    def _start(self, event: dict[str, Any]) -> None:
        rank = self._ranks.setdefault(int(event["rank"]), RankState(rank=int(event["rank"])))
        rank.node = str(event["node"])
        if rank.status == "waiting":
            rank.status = ALIVE  # a short program may have ended before its agent tells of its start
        node = self._nodes.setdefault(rank.node, NodeState(name=rank.node))
        if rank not in node.ranks:
            node.ranks = sorted([*node.ranks, rank], key=lambda each: each.rank)

    def _exit(self, event: dict[str, Any]) -> None:
        rank = self._ranks[int(event["rank"])]
        rank.status = ENDED if event.get("status") == 0 else FAILED
        rank.steps = max(rank.steps, int(event.get("steps") or 0))

    def _lose(self, event: dict[str, Any]) -> None:
        node = self._nodes[str(event["node"])]
        node.is_lost = True
        for rank in node.ranks:
            rank.status = LOST if rank.status == ALIVE else rank.status
        self._say(float(event["time"]), f"{node.name} is lost: {event.get('why', '')}")

    def _end(self, event: dict[str, Any]) -> None:
        if event.get("cause"):
            self._say(float(event["time"]), f"ended: {event['cause']} {event.get('detail', '')}")

    def _take_sample(self, line: dict[str, Any], moment: float) -> None:
        for node, rows in line.get("load", {}).items():
            self._take_load(node, rows)
        if int(line.get("attempt", -1)) != self.state.attempt or "steps" not in line:
            return
        number = int(line.get("ranks") or self.state.num_ranks)
        self._steps = line["steps"] if isinstance(line["steps"], list) else [line["steps"]] * number
        self.state.steps = int(max(self._steps, default=0))
        if "loss" in line:
            self.state.loss = float(line["loss"])
            self._losses.append(self.state.loss)
        self._take_pace(moment, line.get("samples"))
        if line.get("measures"):
            self._take_measures(moment, [int(made) for made in self._steps], of_ranks(line))

    def _take_pace(self, moment: float, samples: float | None) -> None:
        before = self._before
        if before is not None and moment > before[0]:
            passed = moment - before[0]
            self.state.steps_per_second = max(0, self.state.steps - before[1]) / passed
            self._rates.append(self.state.steps_per_second)
            if samples is not None and before[2] is not None:
                self.state.samples_per_second = max(0.0, float(samples) - before[2]) / passed
        self._before = (moment, self.state.steps, None if samples is None else float(samples))

    def _take_measures(self, moment: float, steps: list[int], ranks: list[Measures]) -> None:
        for number, measures in enumerate(ranks):
            rank = self._ranks[number]
            rank.loss = measures.get("loss", math.nan if measures.get("losses_not_finite") else rank.loss)
            if rank.loss is not None and math.isnan(rank.loss):
                self.state.loss = math.nan
            peak = measures.get("peak_reserved_bytes", measures.get("peak_resident_bytes"))
            rank.peak_bytes = int(peak) if peak is not None else rank.peak_bytes
        base = self._base
        if base is None or len(base[2]) != len(ranks):
            self._base, self._base_lines = (moment, steps, ranks), self._in_lines()
            return
        if moment - base[0] < WINDOW_SECONDS:
            return
        for number, (earlier, later) in enumerate(zip(base[2], ranks, strict=True)):
            self._ranks[number].shares = _shares(earlier, later)
        self.state.shares = _mean([rank.shares for rank in self._ranks.values() if rank.shares])
        num_steps = min(steps) - min(base[1])
        if num_steps >= stragglers.LEAST_STEPS and moment - base[0] >= STRAGGLER_SECONDS:
            now_in = self._in_lines()
            in_lines = lines.since(now_in, self._base_lines)
            slow = {each.rank: each for each in stragglers.find(base[2], ranks, num_steps, in_lines)}
            for number, rank in self._ranks.items():
                rank.excess = slow[number].excess if number in slow else 0.0
                rank.cause = slow[number].cause if number in slow else ""
            self._base, self._base_lines = (moment, steps, ranks), now_in

    def _take_load(self, node: str, rows: list[dict[str, Any]]) -> None:
        state = self._nodes.setdefault(node, NodeState(name=node))
        known = {device.number: device for device in state.devices}
        for row in rows:
            device = known.setdefault(int(row["device"]), DeviceState(number=int(row["device"])))
            device.busy = _number(row.get("now", row.get("mean")))
            used, whole = _number(row.get("memory_used_bytes")), _number(row.get("memory_bytes"))
            device.memory = used / whole if used is not None and whole else None
            device.watts = _number(row.get("power_watts"))
            device.celsius = _number(row.get("temperature_celsius"))
            device.megahertz = _number(row.get("clock_mhz"))
            device.throttled = ", ".join(map(str, row.get("throttled") or ()))
        state.devices = sorted(known.values(), key=lambda device: device.number)


def _number(value: Any) -> float | None:
    return float(value) if isinstance(value, (int, float)) else None


def _shares(earlier: Measures, later: Measures) -> dict[str, float]:
    """Return what the time between two samples of a rank was spent with; empty if it made no step."""
    passed = later.get("step_seconds", 0.0) - earlier.get("step_seconds", 0.0)
    if passed <= 0:
        return {}
    shares = {
        part: min(1.0, max(0.0, later[name] - earlier.get(name, 0.0)) / passed)
        for part, name in PARTS.items()
        if name in later
    }
    return {**shares, REST: max(0.0, 1.0 - sum(shares.values()))} if shares else {}


def _mean(all_shares: list[dict[str, float]]) -> dict[str, float]:
    names = [part for part in (*PARTS, REST) if any(part in shares for shares in all_shares)]
    return {part: sum(shares.get(part, 0.0) for shares in all_shares) / len(all_shares) for part in names}


MOST_BYTES = 1 << 26  # the most that one look reads; the rest comes with the next look


LONG_BYTES = 1 << 13
_MEASURES = re.compile(rb', "measures": \{[^{}]*\}')  # numbers and lists of them: no other braces within


class Tail:
    """The objects of a growing file."""

    def __init__(self, path: str, num_whole: int | None = None) -> None:
        """Of a look's long lines, the newest `num_whole` are read whole, and older ones without the ranks' measures."""
        self._path = path
        self._num_whole = num_whole
        self._position = 0
        self._file = -1

    def look(self) -> list[dict[str, Any]]:
        """Return the objects of new lines; a broken line is left out. A file that was replaced is read anew."""
        try:
            with regular_files.opened(self._path) as file:
                status = os.fstat(file.fileno())
                if status.st_ino != self._file or status.st_size < self._position:
                    self._file, self._position = status.st_ino, 0
                file.seek(self._position)
                data = file.read(MOST_BYTES)
        except OSError:
            return []  # there is none yet
        whole = data.rfind(b"\n") + 1
        self._position += whole
        return [value for line in self._shortened(data[:whole].splitlines()) if (value := _object(line))]

    def _shortened(self, lines: list[bytes]) -> list[bytes]:
        """Leave out what nobody looks at: a day of a thousand ranks has 30 MB of it."""
        if self._num_whole is None:
            return lines
        long = [place for place, line in enumerate(lines) if len(line) > LONG_BYTES][: -self._num_whole]
        for place in long:
            lines[place] = _MEASURES.sub(b"", lines[place])
        return lines


def _object(line: bytes) -> dict[str, Any]:
    value = regular_files.json_object(line)
    return value if isinstance(value.get("time"), (int, float)) else {}
