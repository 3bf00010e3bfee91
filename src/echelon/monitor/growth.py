"""Find what only grows in a run: memory, open files, threads, its directory; and when the limit is met.

A value grows if it rises in each part of the run but the first, and does not slow down: what a training needs it takes
in its first steps. The peak so far is taken, so a value that falls and rises again does not grow.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from statistics import median
from typing import Any

from echelon.monitor.attempts import of_ranks, steps_of
from echelon.units import counted, duration, rate, size

NUM_PARTS = 6
"""The parts of the steps behind the begin; the value must rise in each."""
BEGIN = 1 / 4
"""The part of the steps that is not looked at: allocators and caches fill."""
LEAST_POINTS = 9
EVENNESS = 1 / 3
"""The least rise of a part, as a part of the median rise."""
LONGEST_SECONDS = 30 * 86400.0
"""A limit that is met later is not told."""
MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class GrowingMeasure:
    """A measure of a rank that may grow."""

    words: str
    least: float
    """A smaller rise is told by nobody."""
    in_bytes: bool


KINDS = {
    "own_bytes": GrowingMeasure("the host memory of {}", 32 * MIB, True),
    "peak_allocated_bytes": GrowingMeasure("the device memory of {}", 32 * MIB, True),
    "open_files": GrowingMeasure("the number of open files of {}", 24, False),
    "os_threads": GrowingMeasure("the number of threads of {}", 24, False),
}
NODE = GrowingMeasure("the memory in use on {}", 64 * MIB, True)
DIRECTORY = GrowingMeasure("the run directory", 64 * MIB, True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Growth:
    """A value that only grows."""

    name: str
    rank: int
    """-1: of a node, or of the run directory."""
    words: str
    """What grows: "the host memory of rank 1"."""
    kind: GrowingMeasure
    per_step: float
    now: float
    limit: float | None = None
    """The value at which the run ends; None: unknown, or met in more than a month."""
    steps_left: int = 0
    """Until the limit is met at this rate."""
    seconds_left: float = 0.0

    def until(self, limit: float | None, step_seconds: float) -> Growth:
        """Return the same with its limit, and with the steps until then."""
        steps = 0 if limit is None else int(max(0.0, limit - self.now) / self.per_step)
        if limit is None or steps * step_seconds > LONGEST_SECONDS:
            return self
        return replace(self, limit=limit, steps_left=steps, seconds_left=steps * step_seconds)

    @property
    def sentence(self) -> str:
        """Say what grows, how fast, and when the limit is met."""
        told = f"{self.words} only grows, by {self._amount(self.per_step)} in each step: {self._amount(self.now)} now"
        if self.limit is None:
            return told
        return (
            f"{told}; at this rate its limit of {self._amount(self.limit)} is met after "
            f"{counted(self.steps_left, 'more step')}, in {duration(self.seconds_left)}"
        )

    def _amount(self, value: float) -> str:
        return size(round(value)) if self.kind.in_bytes else rate(value)


@dataclass(frozen=True, slots=True)
class GrowthPoint:
    """A value at a moment."""

    time: float
    steps: int
    value: float


def rise(points: Sequence[GrowthPoint], least: float) -> float | None:
    """Return by how much a value rises in a step; None if it does not rise steadily.

    >>> rise([GrowthPoint(float(at), 10 * at, 100.0 + 5 * at) for at in range(12)], least=1)
    0.5
    >>> rise([GrowthPoint(float(at), 10 * at, min(100.0 + 5 * at, 130)) for at in range(12)], least=1) is None
    True
    """
    first, last = points[0].steps, points[-1].steps
    behind = [point for point in points if point.steps >= first + BEGIN * (last - first)]
    if (
        behind[-1].value - behind[0].value < least
        or len(points) < LEAST_POINTS
        or len(behind) <= NUM_PARTS
        or behind[-1].steps <= behind[0].steps
    ):
        return None
    begin, width = behind[0].steps, (behind[-1].steps - behind[0].steps) / NUM_PARTS
    borders = [_at(behind, begin + width * part) for part in range(NUM_PARTS + 1)]
    rises = [after - before for before, after in pairwise(borders)]
    if min(rises) <= EVENNESS * median(rises) or rises[-1] + rises[-2] < (rises[0] + rises[1]) / 2:
        return None
    return sum(rises) / (behind[-1].steps - begin)


def _at(points: Sequence[GrowthPoint], steps: float) -> float:
    """Return the value at a step, on the line between the points around it."""
    after = next((point for point in points if point.steps >= steps), points[-1])
    before = next((point for point in reversed(points) if point.steps <= steps), points[0])
    if after.steps == before.steps:
        return after.value
    return before.value + (after.value - before.value) * (steps - before.steps) / (after.steps - before.steps)


def find(samples: Iterable[Mapping[str, Any]]) -> list[Growth]:
    """Return what grows in the newest attempt of a run, the values whose limit is met first before the others."""
    lines = [line for line in samples if "steps" in line]
    lines = [line for line in lines if line.get("attempt") == lines[-1].get("attempt")]
    lines = lines[next((at for at, line in enumerate(lines) if _steps(line)), len(lines)) :]
    if len(lines) < LEAST_POINTS:
        return []
    pace = (float(lines[-1]["time"]) - float(lines[0]["time"])) / max(1, _steps(lines[-1]) - _steps(lines[0]))
    grown = [*_of_ranks(lines, pace), *_of_directory(lines, pace)]
    by_ranks = sum(growth.per_step for growth in grown if growth.name == "own_bytes")
    grown += [each for each in _of_nodes(lines, pace) if each.per_step > 2 * by_ranks]
    return sorted(grown, key=lambda each: (each.limit is None, each.seconds_left))


def _steps(line: Mapping[str, Any]) -> int:
    return min(steps_of(line), default=0)


def _of_ranks(lines: Sequence[Mapping[str, Any]], pace: float) -> Iterable[Growth]:
    """Find what grows in ranks; of ranks that grow alike, one sentence tells the rank that meets its limit first."""
    detailed = [line for line in lines if "measures" in line and line["ranks"] == lines[-1]["ranks"]]
    if not detailed:
        return
    num_ranks = int(detailed[-1]["ranks"])
    left, limits = _column(detailed[-1], "host_bytes_left"), _column(detailed[-1], "open_files_limit")
    for name, kind in KINDS.items():
        columns = [_column(line, name) for line in detailed]
        points = [_highest(zip(detailed, column, strict=True)) for column in zip(*columns, strict=True)]
        grown = [each for rank in range(num_ranks) for each in _growth(name, kind, points[rank], rank=rank)]
        if not grown:
            continue
        most = max(grown, key=lambda each: each.per_step)
        limit = limits[most.rank] if name == "open_files" else None
        if name == "own_bytes" and left[most.rank] is not None:  # the ranks of a node share what is left
            on_node = max(1, sum(each == left[most.rank] for each in left) * len(grown) // num_ranks)
            limit = most.now + (left[most.rank] or 0.0) / on_node
        elif name == "peak_allocated_bytes":
            limit = _device_bytes(lines)
        yield replace(most, words=kind.words.format(_who(grown, most, num_ranks))).until(limit, pace)


def _who(grown: Sequence[Growth], most: Growth, num_ranks: int) -> str:
    if len(grown) == 1:
        return f"rank {most.rank}"
    if len(grown) == num_ranks:
        return "both ranks" if num_ranks == 2 else f"all {num_ranks} ranks"
    return f"{len(grown)} ranks, most of rank {most.rank},"


def _column(line: Mapping[str, Any], name: str) -> list[float | None]:
    """Return a measure of each rank; equal values stand once in a line."""
    values = line["measures"].get(name)
    return list(values) if isinstance(values, list) else [values] * int(line["ranks"])


def _device_bytes(lines: Sequence[Mapping[str, Any]]) -> float | None:
    """Return the memory of a device, if all have the same."""
    loads = [row for line in lines for rows in line.get("load", {}).values() for row in rows]
    sizes = {float(row["memory_bytes"]) for row in loads if row.get("memory_bytes")}
    return sizes.pop() if len(sizes) == 1 else None


def _highest(values: Iterable[tuple[Mapping[str, Any], float | None]]) -> list[GrowthPoint]:
    points: list[GrowthPoint] = []
    for line, value in values:
        if value is not None:
            most = max(value, points[-1].value if points else value)
            points.append(GrowthPoint(float(line["time"]), _steps(line), most))
    return points


def _growth(
    name: str, kind: GrowingMeasure, points: Sequence[GrowthPoint], *, rank: int = -1, words: str = ""
) -> Iterable[Growth]:
    per_step = rise(points, kind.least) if points else None
    if per_step is not None:
        yield Growth(name=name, rank=rank, words=words, kind=kind, per_step=per_step, now=points[-1].value)


def _of_nodes(lines: Sequence[Mapping[str, Any]], pace: float) -> Iterable[Growth]:
    """Find a node whose memory becomes less, where that of its ranks does not grow."""
    nodes = dict.fromkeys(node for line in lines for node in line.get("host", {}))
    for node in nodes:
        rows = [(line, line["host"][node]) for line in lines if node in line.get("host", {})]
        points = _highest((line, row.get("memory_used_bytes")) for line, row in rows)
        for growth in _growth("node_bytes", NODE, points, words=NODE.words.format(node)):
            yield growth.until(rows[-1][1].get("memory_bytes"), pace)


def _of_directory(lines: Sequence[Mapping[str, Any]], pace: float) -> Iterable[Growth]:
    told = [line for line in lines if "run_bytes" in line]
    points = _highest((line, float(line["run_bytes"])) for line in told)
    for growth in _growth("run_bytes", DIRECTORY, points, words=DIRECTORY.words):
        yield growth.until(points[-1].value + float(told[-1]["disk_free_bytes"]), pace)


MOST_ON_CURVE = 6


def curve(samples: Iterable[Mapping[str, Any]], attempt: int, rank: int) -> str:
    """Return the host memory of a rank over its time: "0.4 GiB after 2 s, 1.1 GiB after 9 s"; empty: unknown."""
    told = [
        (float(line["time"]), ranks[rank]["own_bytes"])
        for line in samples
        if line.get("attempt") == attempt and "measures" in line
        for ranks in [of_ranks(dict(line))]
        if rank < len(ranks) and "own_bytes" in ranks[rank]
    ]
    if len(told) < 2:
        return ""
    shown = {round(at * (len(told) - 1) / (MOST_ON_CURVE - 1)) for at in range(MOST_ON_CURVE)}
    return ", ".join(
        f"{size(round(value))} after {duration(moment - told[0][0])}"
        for at, (moment, value) in enumerate(told)
        if at in shown and at
    )
