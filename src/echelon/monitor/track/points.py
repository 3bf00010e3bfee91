"""The points of a run's curves, from the files that its supervisor writes; each step comes once."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from echelon.monitor.attempts import continued_after, of_ranks, steps_of
from echelon.monitor.training import PARTS
from echelon.monitor.watch.live import Tail

PEAKS = ("peak_allocated_bytes", "peak_reserved_bytes", "peak_resident_bytes")
MOST_QUESTIONS = 10
"""The line that tells where a training goes on comes before its first step, and its agent may write it later."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CurvePoint:
    """What is known at a step, counted from the begin of the training, by the names that trackers show."""

    step: int
    time: float
    values: Mapping[str, float]


class CurvePoints:
    """The points of a run so far, look by look."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._events, self._samples = (Tail(os.path.join(path, name)) for name in ("events.jsonl", "samples.jsonl"))
        self._highest = 0
        self._begin(-1, 0)

    def _begin(self, attempt: int, num_ranks: int) -> None:
        self._attempt, self._num_ranks = attempt, num_ranks
        self._offset = self._num_questions = 0
        """The step of the checkpoint from which the attempt goes on, and how often its log was asked for that."""
        self._exits: dict[int, Mapping[str, Any]] = {}
        self._before: Mapping[str, float] = {"steps": 1.0}
        """The sums at the last point; ranks measure from the end of their first step on."""

    def look(self) -> list[CurvePoint]:
        """Return the points of what was written since the last look; of a step that is computed again, none."""
        lines = self._events.look()
        while more := self._samples.look():  # of a long file, a look reads a part
            lines += more
        points = []
        for line in sorted(lines, key=lambda line: float(line["time"])):
            try:
                point = self._take(line)
            except (KeyError, TypeError, ValueError, IndexError):
                continue  # a line that echelon did not write, or one of a later version
            if point is not None and point.step > self._highest:
                self._highest = point.step
                points.append(point)
        return points

    def _take(self, line: Mapping[str, Any]) -> CurvePoint | None:
        kind = line.get("event")
        if kind == "attempt":
            self._begin(int(line["number"]), int(line["ranks"]))
        elif kind == "exit" and line.get("steps"):
            self._exits[int(line["rank"])] = line
            return self._last() if len(self._exits) == self._num_ranks else None
        elif kind in ("restart", "end"):
            return self._last()
        elif kind is None and line.get("attempt") == self._attempt and max(steps_of(line), default=0):
            return self._point(line, of_ranks(dict(line)) if "measures" in line else [])
        return None

    def _last(self) -> CurvePoint | None:
        """Return the point of the ranks' last words: their last step is newer than the last sample."""
        exits = [event for _, event in sorted(self._exits.items())]
        told = [event.get("measures") or {} for event in exits]
        ranks = [{name: value for name, value in measures.items() if value is not None} for measures in told]
        if 0 not in self._exits:
            return None
        losses = [measures["loss"] for measures in ranks if "loss" in measures]
        last: dict[str, Any] = {"time": max(event["last_step"] for event in exits)}
        last |= {"steps": [event["steps"] for event in exits], "loss": sum(losses) / len(losses) if losses else None}
        return self._point(last, ranks)

    def _point(self, sample: Mapping[str, Any], ranks: list[dict[str, float]]) -> CurvePoint:
        if not self._offset and self._num_questions < MOST_QUESTIONS:
            self._num_questions += 1
            self._offset = continued_after(self._path, self._attempt)
        sums = {"steps": float(max(steps_of(sample)))}
        sums |= {name: ranks[0][name] for name in ("step_seconds", *PARTS.values()) if ranks and name in ranks[0]}
        sums |= {name: sum(numbers) for name in ("samples", "tokens") if (numbers := _known(name, ranks))}
        values = {"loss": float(sample["loss"])} if isinstance(sample.get("loss"), (int, float)) else {}
        values |= self._rates(sums) | {name: max(numbers) for name in PEAKS if (numbers := _known(name, ranks))}
        if ranks and sums["steps"] > self._before["steps"]:  # the sums may be newer than the same steps of a last pulse
            self._before = sums
        return CurvePoint(step=self._offset + int(sums["steps"]), time=float(sample["time"]), values=values)

    def _rates(self, sums: Mapping[str, float]) -> dict[str, float]:
        """Return what rank 0 took for each step since the last point with its measures, and the speed of all ranks."""
        passed = {name: value - self._before.get(name, 0.0) for name, value in sums.items()}
        steps, seconds = passed["steps"], passed.get("step_seconds", 0.0)
        if steps <= 0 or seconds <= 0:
            return {}
        times = {name: value / steps for name, value in passed.items() if name.endswith("_seconds")}
        counts = {name: passed[name] for name in ("samples", "tokens") if name in passed}
        return times | {f"{name}_per_second": count / seconds for name, count in counts.items()}


def _known(name: str, ranks: list[dict[str, float]]) -> list[float]:
    return [measures[name] for measures in ranks if name in measures]
