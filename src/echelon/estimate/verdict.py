"""Judge whether a training fits on a device: an interval in bytes, and why; the fewest devices; the largest batch."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial

from echelon.errors import UsageError
from echelon.estimate import devices, timeline
from echelon.estimate.layout import AXES, Layout
from echelon.estimate.log import EventLog
from echelon.estimate.strategies import RankMemory, memory
from echelon.units import size

FITS, FITS_NOT, CLOSE = "fits", "does not fit", "too close to call"
MOST_RANKS = 4096
MOST_ROWS = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class FitVerdict:
    """Whether the fullest rank of a layout fits."""

    layout: Layout
    device: devices.Device
    memory: RankMemory
    overheads: tuple[devices.Overhead, ...]
    """What the device holds besides tensors."""
    low_bytes: int
    """The least that is needed: allocated blocks, and the least of each overhead."""
    high_bytes: int
    """The most: all that the allocator reserves without a limit, and the most of each overhead."""

    @property
    def answer(self) -> str:
        """Fits, does not fit, or too close to call."""
        if self.high_bytes <= self.device.memory_bytes:
            return FITS
        return FITS_NOT if self.low_bytes > self.device.memory_bytes else CLOSE

    @property
    def predicate(self) -> str:
        """The answer in a sentence."""
        return f"is {self.answer}" if self.answer == CLOSE else self.answer

    @property
    def why(self) -> str:
        """The numbers behind the answer."""
        span = f"{size(self.low_bytes)} to {size(self.high_bytes)} of {size(self.device.memory_bytes)}"
        name, part = next(iter(self.memory.peak.parts.items()), ("tensor", 0))
        largest = f"most of its peak in {self.memory.peak.phase} are {NAMES.get(name, name)}, {size(part)}"
        return f"{self.layout.name} {self.predicate}: {span}; {largest}"

    def fits_with(self, margin: float) -> bool:
        """Say whether it fits if this share of the device has to stay free."""
        return self.high_bytes <= (1 - margin) * self.device.memory_bytes


NAMES = {
    "parameter": "parameters",
    "gradient": "gradients",
    "state": "optimizer states",
    "buffer": "buffers",
    "input": "inputs",
    "activation": "activations",
    "temporary": "temporaries",
    "gathered": "gathered weights",
    "communication": "buffers of messages",
}
"""The categories of tensors in sentences."""


def judge(log: EventLog, layout: Layout, device: devices.Device, *, expandable: bool = False) -> FitVerdict:
    workspace = devices.overhead(device, devices.WORKSPACE)
    replay = partial(memory, log, layout, expandable=expandable, before=_handles(workspace.high_bytes))
    taken = replay()
    axes = sum(getattr(layout, axis) > 1 for axis in AXES)
    outside = [devices.overhead(device, kind) for kind in (devices.CONTEXT, devices.LIBRARIES, devices.HIDDEN)]
    outside += [devices.overhead(device, devices.COMMUNICATOR, number=axes)] if axes else []
    if timeline.has_any(log):
        most = replay(has_workspaces=True).reserved_bytes - taken.reserved_bytes
        outside += [_of_convolutions(most)] if most > 0 else []
    low = taken.allocated_bytes - (workspace.high_bytes - workspace.low_bytes)
    return FitVerdict(
        layout=layout,
        device=device,
        memory=taken,
        overheads=(workspace, *outside),
        low_bytes=low + sum(part.low_bytes for part in outside),
        high_bytes=taken.reserved_bytes + sum(part.high_bytes for part in outside),
    )


def _of_convolutions(most: int) -> devices.Overhead:
    source = "the algorithm of a convolution is chosen when it runs: Winograd's takes the most (arXiv:1509.09308)"
    return devices.Overhead(kind=devices.CONVOLUTION, low_bytes=0, high_bytes=most, source=source)


def _handles(num_bytes: int) -> tuple[int, ...]:
    """Return the workspaces of two handles: forward and backward run in threads of their own."""
    return (num_bytes // 2, num_bytes - num_bytes // 2)


@dataclass(frozen=True, slots=True, kw_only=True)
class Fewest:
    """The fewest ranks; 0: not even on the most that were tried."""

    surely: int
    """On so many it fits."""
    perhaps: int
    """On so many it may fit: on fewer it does not."""
    verdict: FitVerdict | None
    """The judgement of the number on which it surely fits, or else of the most that were tried."""


def fewest(
    log: EventLog,
    device: devices.Device,
    layout_of: Callable[[int], Layout],
    *,
    counts: Iterable[int] = (),
    margin: float = 0.0,
) -> Fewest:
    """Find the fewest ranks; without `counts` powers of two are tried, with at least one row a rank.

    On the fewest on which it surely fits, the share `margin` of the device stays free.
    """
    tried = list(counts) or [1 << power for power in range(MOST_RANKS.bit_length())]
    perhaps, verdict = 0, None
    for count in tried:
        layout = layout_of(count)
        parts = layout.num_data * layout.accumulation
        try:
            verdict = judge(log, layout.changed(rows=max(layout.rows or log.rows, parts)), device)
        except UsageError:
            break  # more stages than blocks: no larger number is possible
        if not perhaps and verdict.answer != FITS_NOT:
            perhaps = count
        if verdict.fits_with(margin):
            return Fewest(surely=count, perhaps=perhaps, verdict=verdict)
        if _is_stuck(verdict):
            break
    return Fewest(surely=0, perhaps=perhaps, verdict=verdict)


def _is_stuck(verdict: FitVerdict) -> bool:
    """Say whether more ranks cannot help: nothing is divided that still counts."""
    shared = {"parameter", "gradient", "state"} & set(verdict.memory.peak.parts)
    rest = verdict.low_bytes - sum(verdict.memory.peak.parts[name] for name in shared)
    is_one_row = verdict.layout.rows <= verdict.layout.num_data * verdict.layout.accumulation
    return is_one_row and rest > verdict.device.memory_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class LargestBatch:
    """The most rows of the batch of all ranks; 0: not even one row a rank."""

    surely: int
    perhaps: int


def largest_batch(log: EventLog, layout: Layout, device: devices.Device) -> LargestBatch:
    """Find the most rows by replays: a line through two of them says where to look, and a bisection ends there."""
    if not log.rows:
        raise UsageError(
            "the rows of a batch are unknown, so its largest size is too",
            hint="give the script a DataLoader whose batches have their rows in the first dim",
        )
    known: dict[int, FitVerdict] = {}
    step = layout.num_data * layout.accumulation

    def needed(number: int, is_sure: bool) -> int:
        if number not in known:
            known[number] = judge(log, layout.changed(rows=number * step), device)
        return known[number].high_bytes if is_sure else known[number].low_bytes

    surely = _most(lambda number: needed(number, True), device.memory_bytes)
    perhaps = max(surely, _most(lambda number: needed(number, False), device.memory_bytes))
    return LargestBatch(surely=surely * step, perhaps=perhaps * step)


def _most(needed: Callable[[int], int], limit: int) -> int:
    """Return the largest number whose need is within the limit; needs grow about linearly."""
    if needed(1) > limit:
        return 0
    low, high, guess, turn = 1, MOST_ROWS, 8, 0
    while high - low > 1:
        if needed(guess) <= limit:
            low = guess
        else:
            high = guess
        other = high if high < MOST_ROWS else 1
        rise = abs(needed(low) - needed(other))
        line = low + (limit - needed(low)) * abs(low - other) // rise if rise else MOST_ROWS
        turn += 1
        guess = (low + high) // 2 if turn % 3 == 0 or not rise else min(max(line, low + 1), high - 1)
    return low
