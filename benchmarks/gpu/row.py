"""What a row of docs/gpu.md is, and the comparison of losses that many rows make."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from benchmarks.gpu.bench import Bench, Done

SHOWN, FAILED, SKIPPED, UNRUN = "shown", "FAILED", "skipped", "not run"
RELATIVE = 1e-4  # of a loss in float32, whose sums a device makes in another order
LOOSE = 2e-2  # with numbers of 16 bits, or over many steps, in which rounding grows
MOST_SHOWN = 160  # letters of what a program has said


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """The result of a row."""

    how: str
    what: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """Something that is to be shown."""

    name: str
    promise: str
    show: Callable[[Bench], Seen]
    is_alone: bool = False
    """Whether no other row may run beside it, since it measures the device or fills it."""


def failed(done: Done) -> Seen:
    """Say how a program ended that should not have."""
    lines = [line for line in done.err.splitlines() if line.strip()]
    errors = [line for line in lines if "Error" in line] or lines or ["nothing was said"]
    return Seen(how=FAILED, what=f"exit code {done.code}: {errors[-1].strip()[:MOST_SHOWN]}")


def same_losses(bench: Bench, done: Done, *arguments: str, note: str = "", relative: float = RELATIVE) -> Seen:
    """Compare with Python alone."""
    return compare(bench.alone(*arguments), done, note=note, relative=relative)


def compare(alone: Done, done: Done, *, note: str = "", relative: float = RELATIVE) -> Seen:
    """Compare the losses of two runs."""
    for each in (alone, done):
        if each.code or not each.losses():
            return failed(each)
    if len(alone.losses()) != len(done.losses()):
        return Seen(how=FAILED, what=f"{len(done.losses())} steps, and {len(alone.losses())} by Python alone")
    worst = max(
        abs(one - other) / max(abs(other), 1e-9) for one, other in zip(done.losses(), alone.losses(), strict=True)
    )
    how = SHOWN if worst <= relative else FAILED
    what = f"{len(alone.losses())} losses within {worst:.0e} of Python alone"
    return Seen(how=how, what=f"{what}; {note}" if note else what)


def ranks(bench: Bench) -> tuple[str, ...]:
    """Return two ranks, which share the device where there is one."""
    return ("-n", "2") if bench.device == "cpu" or bench.num_devices > 1 else ("-n", "2", "--share-devices")
