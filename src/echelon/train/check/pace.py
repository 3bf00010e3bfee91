"""Tell where several ranks are no faster than one: compare a spot's time on one device with the steps of all ranks.

The estimate for one device is an upper bound. It is rank 0's time for the whole batch, while the others wait, plus its
optimizer, plus each rank's remaining time, multiplied by the number of ranks. So the line is rarely wrong.
"""

import os
import socket
import statistics
import time
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import torch

from .. import events
from ..wire import device as devices
from ..wire import messages
from ..wire.world import World

FIRST = 21
"""The first step that counts: compilers, allocators and caches are busy in earlier steps."""
NUM_PHASED = 3
"""The number of steps whose parts are measured."""
NUM_STEPS = 50
"""The number of steps for the median."""
LEAST_LOSS = 1.1
"""The smallest ratio that is told; a smaller one may be chance."""
WAYS_OUT = "use a larger batch, or fewer ranks"


class Times:
    """The seconds of the parts of a spot."""

    def __init__(self) -> None:
        self.whole = self.own = self.exchange = 0.0
        self.is_complete = True
        """Whether rank 0 alone computed the whole step; all ranks have the same value."""


class StepSeconds(NamedTuple):
    """The seconds of a part of a step; with a device both numbers are about equal, because the rank waits for it."""

    passed: float
    computed: float
    """The seconds in which this process had a core."""


class Pace:
    """Measures the steps of rank 0, and tells once if they are no faster than those of one device."""

    def __init__(self, world: World, say: Callable[[str], None]) -> None:
        self._world = world
        self._say = say
        self._is_main = world.processes.rank == 0
        self._is_open = not world.is_exact
        self._last = 0.0
        self._last_computed = 0.0
        self._parts: dict[str, StepSeconds] = {}
        self._phases: list[dict[str, StepSeconds]] = []
        self._steps: list[float] = []
        self._optimizer = 0
        self._step_began = (0.0, 0.0)
        self._begun: list[tuple[float, float]] = []
        """When the parts began that go on now."""
        self._is_phased = False
        self._spot = Times()
        self._spot.is_complete = False
        self._reason = ""

    def listen(self) -> None:
        """Measure the parts of steps from now on."""
        for name, span in (("load", events.loading), ("model", events.computing)):
            span.begin.listen("pace", self._begin_part)
            span.end.listen("pace", partial(self._end_part, name))
        events.after_step.listen("pace", self._after_step)

    def _begin_part(self) -> None:
        if self._is_phased:
            self._begun.append(self._now())

    def _end_part(self, name: str) -> None:
        if self._begun:
            self._add(name, self._begun.pop())

    def note_spot(self, step: int, times: Times) -> None:
        """Keep the times of a spot, and ask all ranks for their nodes and cores; all ranks must call this."""
        if self._spot.is_complete or not times.is_complete or step < FIRST or self._world.is_exact:
            return
        self._spot = times
        every = messages.gather(_place())
        if not devices.is_accelerator(self._world.device):
            self._reason = crowded(every)

    def before_step(self, step: int, optimizer: torch.optim.Optimizer, *, was_spot: bool) -> None:
        """Note the time of the step that ends here, on rank 0."""
        if not self._is_open or not self._is_main:
            return
        if self._optimizer not in (0, id(optimizer)):
            self._is_open = self._is_phased = False  # steps of several kinds take turns
            return
        self._optimizer = id(optimizer)
        if step >= FIRST:
            self._take(step, was_spot=was_spot)
        self._is_phased = step >= FIRST and len(self._phases) < NUM_PHASED
        self._parts = {}
        self._last, self._last_computed = self._now()
        self._step_began = self._last, self._last_computed

    def _after_step(self, _: torch.optim.Optimizer) -> None:
        if self._is_phased:
            self._add("optimizer", self._step_began)

    def _take(self, step: int, *, was_spot: bool) -> None:
        last = (self._last, self._last_computed)
        passed, computed = (now - before for now, before in zip(self._now(), last, strict=True))
        if step == FIRST or was_spot:
            return
        if self._is_phased:
            self._parts["all"] = StepSeconds(passed, computed)
            self._phases.append(self._parts)
            return
        self._steps.append(passed)
        if len(self._steps) >= NUM_STEPS and self._spot.is_complete and len(self._phases) == NUM_PHASED:
            self._is_open = False
            self._judge()

    def _judge(self) -> None:
        """Tell the user if ranks are no faster."""
        num_ranks = self._world.size
        took = statistics.median(self._steps)
        alone = self._spot.whole + statistics.median(self._besides(parts) for parts in self._phases)
        quick = sorted(self._steps)[len(self._steps) // 4]
        if not self._spot.whole or took <= LEAST_LOSS * alone or quick <= alone:
            return
        own, exchange = _milliseconds(self._spot.own), _milliseconds(self._spot.exchange)
        reason = self._reason or f"a rank computes its part in {own}, and the ranks exchange gradients in {exchange}"
        self._say(
            f"note: a step of {num_ranks} ranks takes {_milliseconds(took)}, and one rank alone would take "
            f"about {_milliseconds(alone)}: {reason} (way out: {WAYS_OUT})"
        )

    def _besides(self, parts: dict[str, StepSeconds]) -> float:
        """Return an upper bound of one device's time outside of the model: one device has the rows of all ranks."""
        nothing, num_ranks = StepSeconds(0.0, 0.0), self._world.size
        model, optimizer = parts.get("model", nothing), parts.get("optimizer", nothing)
        passed = parts["all"].passed - model.passed - optimizer.passed
        computed = parts["all"].computed - model.computed - optimizer.computed
        is_cpu = not devices.is_accelerator(self._world.device)  # a device is waited for with a busy core
        by_hooks = max(0.0, model.computed - self._spot.own) if is_cpu else 0.0  # a spot leaves the script's hooks out
        return optimizer.passed + passed + (num_ranks - 1) * max(0.0, computed) + num_ranks * by_hooks

    def _now(self) -> tuple[float, float]:
        if self._is_phased:
            devices.synchronize(self._world.device)
        return time.perf_counter(), time.thread_time()

    def _add(self, name: str, began: tuple[float, float]) -> None:
        passed, computed = (one - other for one, other in zip(self._now(), began, strict=False))
        before = self._parts.get(name, StepSeconds(0.0, 0.0))
        self._parts[name] = StepSeconds(before.passed + passed, before.computed + computed)


def _place() -> tuple[str, tuple[int, ...]]:
    """Return the node of this rank, and its cores."""
    cores = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else range(os.cpu_count() or 1)
    return socket.gethostname(), tuple(sorted(cores))


def crowded(places: list[tuple[str, tuple[int, ...]]]) -> str:
    """Say whether a node has more ranks than cores."""
    for node in sorted({name for name, _ in places}):
        ranks = [cores for name, cores in places if name == node]
        cores = {core for each in ranks for core in each}
        if len(ranks) > len(cores):
            return f"{len(ranks)} ranks share {len(cores)} core{'' if len(cores) == 1 else 's'}"
    return ""


def _milliseconds(seconds: float) -> str:
    return f"{seconds * 1e3:.3g} ms"
