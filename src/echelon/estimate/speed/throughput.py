"""How a training scales: the time of a step on more devices, from one or more measured sizes.

A step takes compute, which more devices divide if the global batch stays (strong scaling), and a rest that they do not:
the optimizer, pipeline bubbles, launches, communication. Two sizes tell both. How the rest grows beyond them is not
known, so the bounds are two laws: it stays, and it grows as measured with each device (weak) or each doubling (strong).
All measured times may be wrong by their spread; the bounds take the worst of it.
"""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace

from echelon.errors import UsageError
from echelon.estimate.speed import doubts
from echelon.estimate.speed.runs import (
    MODES,
    STRONG,
    WEAK,
    Interval,
    NetworkSpeed,
    PredictedSize,
    Refusal,
    SizeRun,
    Worth,
)

UNKNOWN_SPREAD = 0.02
"""How far the time of a step may be wrong that was measured once: jobs on other nodes differ by a few per cent."""
LEAST_SPREAD = 0.01
"""Also steps that agree better within a run may differ from those of the next job by so much."""
DOUBT_A_DOUBLING = 0.03
"""What each doubling beyond the largest measured size may cost that the measured ones do not show."""
ROUNDING = 1e-9
FARTHEST = 16
"""No size is estimated beyond so many times the largest measured one."""
HIDDEN = 2 / 3
"""Communication hides behind the backward pass, which is two thirds of a step's floating-point operations."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTimeLaw:
    """The law of a training's step time; `fit` makes it."""

    mode: str
    """"strong": all sizes have the same global batch; "weak": all devices have the same batch."""
    base: SizeRun
    """The smallest measured size, to which speedup and efficiency are relative."""
    smaller: SizeRun | None
    """The smaller of the two sizes that the law goes through; None: there is only one."""
    larger: SizeRun
    """The largest measured size."""
    spread: float
    """How far the measured times may be wrong, as a share."""
    network: NetworkSpeed | None

    @property
    def farthest(self) -> int:
        """The largest size that `at` estimates."""
        return FARTHEST * self.larger.num_devices

    def at(self, num_devices: int) -> PredictedSize | Refusal:
        """Estimate a size larger than the largest measured one, or say why not.

        Raises UsageError for a size that is not larger.
        """
        if num_devices <= self.larger.num_devices:
            raise UsageError(
                f"{num_devices} devices are not more than the {self.larger.num_devices} of the largest measured run",
                hint=f"{2 * self.larger.num_devices} or more",
            )
        refusal = doubts.beyond(self.smaller, self.larger, self.mode, self.network, num_devices, self.farthest)
        if refusal is not None:
            return refusal
        return self._prediction(num_devices, self._step_seconds(num_devices))

    def worth(self, efficiency: float) -> Worth:
        """Tell how many devices keep a parallel efficiency, among whole multiples of the largest measured size."""
        least = efficiency - ROUNDING
        measured = self._prediction(self.larger.num_devices, Interval.exact(self.larger.step_seconds)).efficiency.value
        surely = probably = self.larger.num_devices if measured >= least else 0
        last = surely
        for factor in range(2, FARTHEST + 1):
            size = self.at(factor * self.larger.num_devices)
            if isinstance(size, Refusal) or not probably:
                break
            last = size.num_devices
            if size.efficiency.value >= least and probably == (factor - 1) * self.larger.num_devices:
                probably = last
            if size.efficiency.least >= least and surely == (factor - 1) * self.larger.num_devices:
                surely = last
        return Worth(efficiency=efficiency, surely=surely, probably=probably, is_limit=probably == last > 0)

    def _prediction(self, num_devices: int, seconds: Interval) -> PredictedSize:
        """Return a size with all that follows from the time of its step."""
        factor = num_devices / self.base.num_devices
        work = factor if self.mode == WEAK else 1.0
        speedup = seconds.inverse(work * self.base.step_seconds)
        batch = self.base.global_batch
        return PredictedSize(
            num_devices=num_devices,
            step_seconds=seconds,
            speedup=speedup,
            efficiency=Interval(value=speedup.value / factor, least=speedup.least / factor, most=speedup.most / factor),
            samples_per_second=seconds.inverse(work * batch) if batch is not None else None,
        )

    def _step_seconds(self, num_devices: int) -> Interval:
        laws = [self._law(num_devices, *signs) for signs in itertools.product((-1, 0, 1), repeat=2)]
        central = self._law(num_devices, 0, 0)
        doublings = math.log2(num_devices / self.larger.num_devices)
        likely, more = self._added(num_devices)
        return Interval(
            value=central.value + likely,
            least=min(law.least for law in laws),
            most=(max(law.most for law in laws) + more) * (1 + DOUBT_A_DOUBLING) ** doublings,
        )

    def _law(self, num_devices: int, sign: int, larger_sign: int) -> Interval:
        """Return the step time if the two measured times were wrong to the given sides (-1, 0 or 1)."""
        later = self.larger.step_seconds * (1 + larger_sign * self.spread)
        if self.smaller is None:
            return Interval.exact(later)
        sooner = self.smaller.step_seconds * (1 + sign * self.spread)
        sizes = (self.smaller.num_devices, self.larger.num_devices, num_devices)
        return _weak(sizes, sooner, later) if self.mode == WEAK else _strong(sizes, sooner, later)

    def _added(self, num_devices: int) -> tuple[float, float]:
        """Return the seconds that the network probably adds beyond the measured sizes, and the most that it can add.

        Sizes on nodes as they were measured have it in their times.
        """
        network, num_bytes = self.network, self.larger.gradient_bytes
        if network is None or num_bytes is None or not doubts.needs_network(self.smaller, self.larger, num_devices):
            return 0.0, 0.0
        before = network.all_reduce_seconds(num_bytes, self.larger.num_devices) or 0.0
        after = network.all_reduce_seconds(num_bytes, num_devices) or 0.0
        hidden = HIDDEN * self.larger.step_seconds
        if self.mode == STRONG:
            hidden *= self.larger.num_devices / num_devices
        return max(0.0, after - hidden) - max(0.0, min(before, after) - hidden), after


def fit(runs: Sequence[SizeRun], *, mode: str = "", network: NetworkSpeed | None = None) -> StepTimeLaw | Refusal:
    """Return the law of a training's step time through its measured sizes, or why there is none.

    `mode` is "strong", "weak", or empty: then the batches of the runs tell. Raises UsageError for another mode, or
    without a run.

    >>> runs = [SizeRun(num_devices=128, step_seconds=346.7), SizeRun(num_devices=256, step_seconds=180.82)]
    >>> round(fit(runs, mode="strong").at(2048).step_seconds.value, 1)  # measured on LUMI: 36.05
    35.7
    """
    if mode and mode not in MODES:
        raise UsageError(f"scaling {mode!r}: the choices are {' and '.join(MODES)}", hint=f"mode={STRONG!r}")
    if not runs:
        raise UsageError("no run was given, and a step's time is estimated from at least one")
    sizes = _sizes(runs)
    refusal = doubts.unlike(sizes) or doubts.unclear_mode(sizes, mode)
    if refusal is not None:
        return refusal
    mode = mode or doubts.mode_of(sizes)
    larger, smaller = sizes[-1], _partner(sizes)
    refusal = doubts.slower(sizes, mode) or doubts.of_pair(smaller, larger, mode, network)
    if refusal is not None:
        return refusal
    model = StepTimeLaw(
        mode=mode, base=sizes[0], smaller=smaller, larger=larger, spread=_spread(smaller, larger), network=network
    )
    return replace(model, spread=max(model.spread, _misfit(model, sizes)))


def _sizes(runs: Sequence[SizeRun]) -> list[SizeRun]:
    """Return one run for each number of devices, from the fewest to the most; several of one size give its spread."""
    by_size: dict[int, list[SizeRun]] = {}
    for run in runs:
        by_size.setdefault(run.num_devices, []).append(run)
    return [_middle(by_size[number]) for number in sorted(by_size)]


def _middle(runs: list[SizeRun]) -> SizeRun:
    if len(runs) == 1:
        return runs[0]
    times = [run.step_seconds for run in runs]
    middle = statistics.median(times)
    seen = max(max(times) / middle - 1, 1 - min(times) / middle)
    return replace(runs[0], step_seconds=middle, spread=max([seen, *(run.spread or 0.0 for run in runs)]))


def _partner(sizes: list[SizeRun]) -> SizeRun | None:
    """Return the smallest size that communicates as the largest one does, else the smallest; None if there is one."""
    largest = sizes[-1]
    alike = [run for run in sizes[:-1] if run.num_devices > 1 and run.is_across() == largest.is_across()]
    return next(iter(alike or sizes[:-1]), None)


def _spread(smaller: SizeRun | None, larger: SizeRun) -> float:
    spreads = [run.spread for run in (smaller, larger) if run is not None]
    return max(UNKNOWN_SPREAD if spread is None else max(spread, LEAST_SPREAD) for spread in spreads)


def _misfit(model: StepTimeLaw, sizes: list[SizeRun]) -> float:
    """Return how far the law misses the measured sizes between the two that it goes through, as a share."""
    if model.smaller is None:
        return 0.0
    between = [run for run in sizes if model.smaller.num_devices < run.num_devices < model.larger.num_devices]
    misses = [abs(model._law(run.num_devices, 0, 0).value / run.step_seconds - 1) for run in between]
    return max(misses, default=0.0)


def _weak(sizes: tuple[int, int, int], sooner: float, later: float) -> Interval:
    """Return the step time where each device has the same batch: what two sizes differ by is communication."""
    smaller, larger, wanted = sizes
    growth = max(0.0, later - sooner)
    return Interval(
        value=later + growth * math.log(wanted / larger) / math.log(larger / smaller),
        least=later,
        most=later + growth * max(0.0, wanted - larger) / (larger - smaller),
    )


def _strong(sizes: tuple[int, int, int], sooner: float, later: float) -> Interval:
    """Return the step time where the devices divide the batch: a divided part, and a rest that stays or grows."""
    smaller, larger, wanted = sizes
    divided = min((sooner - later) / (1 / smaller - 1 / larger), later * larger)
    stays = divided / wanted + later - divided / larger
    per_doubling = max(0.0, later - sooner * smaller / larger) / (
        math.log2(larger) - math.log2(smaller) * smaller / larger
    )
    grows = max(0.0, later - per_doubling * math.log2(larger)) * larger / wanted + per_doubling * math.log2(wanted)
    return Interval(value=stays, least=stays, most=max(stays, grows))
