"""What a person should hear while a run goes on: each fact once, with its evidence, and at most one line a minute."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from statistics import median
from typing import Any

from echelon.monitor import device_facts, growth, lines, stragglers
from echelon.monitor.attempts import of_ranks, steps_of
from echelon.monitor.bad_steps import BadSteps
from echelon.monitor.device_facts import Fact
from echelon.monitor.lines import RankLines
from echelon.monitor.stragglers import Measures
from echelon.monitor.training import COMMUNICATION, DATA, PARTS
from echelon.units import step_time

EXPLODES, ALONE, SLOWER_STEPS = OF_THE_WAY = "loss explodes", "ranks train alone", "slower"
"""Facts that only the way of a run shows, and not its sums at the end."""
PAUSE_SECONDS = 60.0
WINDOW_SECONDS = 10.0  # the least time between the two samples that are compared
LARGE_SHARE = {DATA: 0.2, COMMUNICATION: 0.5}  # the share of the steps' time from which a wait is a fact
GREW, NUM_LOSSES = 10.0, 5
"""A loss explodes if the median of so many newest ones is so many times the least median."""
IDLE_SECONDS = 120.0
"""The time with steps after which a device that was never busy is named: before, the script may still prepare."""
ALONE_STEPS = 3
"""The least steps of each rank after which ranks that never met train alone: the first step is not measured."""
MOST_LINES, NUM_LINES = 128, 16
"""The lines of a run that are kept to see what grows in it, and after how many more it is looked at again."""
SOON_SECONDS = 86400.0  # what meets its limit later is in the report alone
SLOWER = 1.5  # steps became slower if they take so many times the time of the fastest window


@dataclass(frozen=True, slots=True)
class _Sample:
    time: float
    attempt: int
    num_steps: int
    ranks: list[Measures]


class SampleFacts:
    """Looks at the samples of a run, in their order, and says what is new.

    `is_unshared` says whether the script is one for a single device that is not scaled; it is asked once, if at all.
    `run` is the name of the run if `echelon rehearse` can run its steps again.
    """

    def __init__(self, is_unshared: Callable[[], bool] = lambda: False, run: str = "") -> None:
        self._is_unshared = is_unshared
        self._base: _Sample | None = None
        self._base_lines: dict[int, RankLines] = {}
        self._said: set[tuple[str, int]] = set()
        self._waiting: list[Fact] = []
        self._said_at = 0.0
        self._least_loss: float | None = None
        self._losses: deque[float] = deque(maxlen=NUM_LOSSES)
        self._fastest: float | None = None
        self._slow_windows = 0
        self._first_step: float | None = None
        self._kept: list[dict[str, Any]] = []
        self._num_lines, self._stride = 0, 1
        self._loads: dict[str, list[dict[str, Any]]] = {}
        self._lines: dict[str, Any] = {}
        self._silent: dict[str, list[dict[str, Any]]] = {}
        self._bad_steps = BadSteps(run)
        self._urgent: list[Fact] = []

    def look(self, line: dict[str, Any]) -> Fact | None:
        """Take a line of samples.jsonl, with what lines.json has; return a fact that is to be said now."""
        self._lines = line.get("lines", self._lines)
        self._note(list(self._of_losses(line)))
        self._note_devices(line)
        self._note_growth(line)
        if "measures" in line:
            self._compare(line)
        self._urgent += self._bad_steps.look(line)
        if self._urgent:
            return self._urgent.pop(0)
        if not self._waiting or line["time"] - self._said_at < PAUSE_SECONDS:
            return None
        self._said_at = line["time"]
        return self._waiting.pop(0)

    def rest(self) -> list[Fact]:
        """Return at the end of the run the facts that were not said yet, with those of its devices."""
        self._note(device_facts.facts(self._devices()))
        self._look_at_growth()
        facts, self._waiting = [*self._urgent, *self._bad_steps.rest(), *self._waiting], []
        return facts

    def _note_devices(self, line: dict[str, Any]) -> None:
        """Judge the devices by all that is known of them; idle ones only while the ranks train."""
        steps = line.get("steps", 0)
        if self._first_step is None and (max(steps, default=0) if isinstance(steps, list) else steps):
            self._first_step = float(line["time"])
        if not {"load", "host"} & line.keys():
            return
        self._loads.update(line.get("load", {}))
        self._silent.update({node: host.get("devices", []) for node, host in line.get("host", {}).items()})
        trains = self._first_step is not None and line["time"] - self._first_step >= IDLE_SECONDS
        self._note([fact for fact in device_facts.facts(self._devices()) if trains or fact.kind != device_facts.IDLE])

    def _note_growth(self, line: dict[str, Any]) -> None:
        """Keep every second, fourth, eighth line as the run lasts, and look at what grows each time some were added."""
        self._num_lines += 1
        if len(self._kept) >= MOST_LINES:
            self._kept, self._stride = self._kept[::2], 2 * self._stride
        if (self._num_lines - 1) % self._stride == 0:  # the first of so many lines has the measures
            self._kept.append(line)
            if len(self._kept) % NUM_LINES == 0:
                self._look_at_growth()

    def _look_at_growth(self) -> None:
        grown = growth.find(self._kept)
        self._note([_of_growth(each) for each in grown if 0 < each.seconds_left < SOON_SECONDS][:1])

    def _devices(self) -> dict[str, list[dict[str, Any]]]:
        """Return the newest rows of all devices, also of those whose load is not told."""
        nodes = dict.fromkeys([*self._loads, *self._silent])
        return {node: [*self._loads.get(node, ()), *self._silent.get(node, ())] for node in nodes}

    def _note(self, facts: list[Fact]) -> None:
        for fact in facts:
            key = (fact.kind, int(fact.evidence.get("rank", -1)))
            if key not in self._said:
                self._said.add(key)
                self._waiting.append(fact)

    def _of_losses(self, line: dict[str, Any]) -> Iterator[Fact]:
        """Say that the loss explodes: the median of the newest ones, for a single batch may be an outlier."""
        if line.get("loss") is None:
            return
        self._losses.append(line["loss"])
        if len(self._losses) < NUM_LOSSES:
            return
        loss = median(self._losses)
        least = self._least_loss
        if least is not None and loss > GREW * abs(least) and loss > 1:
            yield Fact(
                kind=EXPLODES,
                line=f"the loss rose from {least:.4g} to {loss:.4g}: a smaller learning rate, or clipped "
                "gradients, would show whether the training diverges",
                evidence={"least": least, "loss": loss},
            )
        self._least_loss = loss if least is None else min(loss, least)

    def _compare(self, line: dict[str, Any]) -> None:
        """Compare the ranks with a sample of this attempt that is old enough, the base of a window."""
        steps = steps_of(line)
        now = _Sample(float(line["time"]), int(line["attempt"]), min(steps), of_ranks(line))
        self._note(list(self._of_ranks_alone(now)))
        base = self._base
        if base is None or base.attempt != now.attempt or len(base.ranks) != len(now.ranks):
            self._base, self._fastest = now, None
            self._base_lines = lines.of_attempt(self._lines, now.attempt)
        elif now.time - base.time >= WINDOW_SECONDS and now.num_steps - base.num_steps >= stragglers.LEAST_STEPS:
            in_lines = lines.of_attempt(self._lines, now.attempt)
            self._note(list(self._of_window(base, now, lines.since(in_lines, self._base_lines))))
            self._base, self._base_lines = now, in_lines

    def _of_ranks_alone(self, now: _Sample) -> Iterator[Fact]:
        """Say that ranks repeat one training, whose loop is in a library: reading the script has not shown it."""
        has_met = any(PARTS[COMMUNICATION] in measures for measures in now.ranks)
        if now.num_steps < ALONE_STEPS or len(now.ranks) < 2 or has_met:
            return
        is_unshared, self._is_unshared = self._is_unshared, lambda: False
        if is_unshared():
            yield Fact(
                kind=ALONE,
                line=f"each of the {len(now.ranks)} ranks trains the whole model by itself, and none exchanges "
                "gradients: the loop of the training is in a library, where echelon does not look; echelon run "
                "--scale data shares it",
                evidence={"ranks": len(now.ranks), "steps": now.num_steps},
            )

    def _of_window(self, before: _Sample, now: _Sample, in_lines: dict[int, RankLines]) -> Iterator[Fact]:
        num_steps = now.num_steps - before.num_steps
        slow = stragglers.find(before.ranks, now.ranks, num_steps, in_lines)
        seconds = _mean_passed(before, now, "step_seconds")
        waits = slow or _mean_passed(before, now, PARTS[COMMUNICATION]) >= LARGE_SHARE[COMMUNICATION] * seconds > 0
        turns = stragglers.alternating_in(self._kept, now.attempt) if waits else {}
        if turns:
            yield _of_turns(turns)
        for straggler in slow[: 0 if turns else 1]:
            yield Fact(
                kind="straggler",
                line=stragglers.sentence(straggler),
                evidence={"rank": straggler.rank, "excess": round(straggler.excess, 3), "cause": straggler.cause},
            )
        if seconds <= 0:
            return
        for part, limit in LARGE_SHARE.items():
            share = _mean_passed(before, now, PARTS[part]) / seconds
            if share >= limit and not ((slow or turns) and part == COMMUNICATION):
                yield _of_wait(part, share)
        yield from self._of_pace(seconds / num_steps)

    def _of_pace(self, seconds: float) -> Iterator[Fact]:
        """Say that steps became slower, in two windows one after the other: one may hold a save or an evaluation."""
        if self._fastest is None or seconds < self._fastest:
            self._fastest = seconds
        self._slow_windows = self._slow_windows + 1 if seconds > SLOWER * self._fastest else 0
        if self._slow_windows >= 2:
            yield Fact(
                kind=SLOWER_STEPS,
                line=f"steps take {step_time(seconds)}, and took {step_time(self._fastest)} before; echelon watch "
                "shows which rank and which part of a step",
                evidence={"seconds": seconds, "before": self._fastest},
            )


def _of_growth(grown: growth.Growth) -> Fact:
    evidence = {"rank": grown.rank, "name": grown.name, "per_step": grown.per_step, "steps_left": grown.steps_left}
    return Fact(kind="grows", line=grown.sentence, evidence=evidence)


def _of_turns(windows: dict[int, int]) -> Fact:
    return Fact(kind="ranks take turns", line=stragglers.turns(windows), evidence={"ranks": list(windows)})


def _of_wait(part: str, share: float) -> Fact:
    if part == DATA:
        line = (
            f"{share:.0%} of the time is waiting for data: has the node idle cores for more workers of the DataLoader "
            "(num_workers)?"
        )
        return Fact(kind="bound by data", line=line, evidence={"share": round(share, 3)})
    line = (
        f"{share:.0%} of the time is waiting for other ranks, and all are equally fast on average: would a larger "
        "batch make it shorter? echelon report names the options that this run accepts"
    )
    return Fact(kind="bound by communication", line=line, evidence={"share": round(share, 3)})


def _mean_passed(before: _Sample, now: _Sample, name: str) -> float:
    """Return the mean over the ranks of what was added to a measure."""
    passed = [
        later.get(name, 0.0) - earlier.get(name, 0.0) for earlier, later in zip(before.ranks, now.ranks, strict=True)
    ]
    return sum(passed) / len(passed) if passed else 0.0
