"""The rows of the speed table that one machine can measure."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial

from benchmarks import residents
from benchmarks.figures import NO_TARGET, Figure, Row, Spread, Target, at_most, at_most_of_theirs
from benchmarks.meter import BenchmarkError, Meter, Sample, cpus, program, tool, walls
from benchmarks.residents import Resident

FEW_RANKS, MANY_RANKS = 2, 10
QUIET_SECONDS = 0.5  # what is still being started when the last rank has left its mark
MEGABYTE = 1e6

Launcher = Callable[[int, str, str], list[str]]
"""From the number of ranks, a script and the folder for their marks to a command."""


def echelon(num_ranks: int, script: str, marks: str) -> list[str]:
    return [tool("echelon"), "run", "-n", str(num_ranks), script, marks]


def torchrun(num_ranks: int, script: str, marks: str) -> list[str]:
    return [tool("torchrun"), "--standalone", "--nproc-per-node", str(num_ranks), script, marks]


def _first_allreduce(meter: Meter, launcher: Launcher, num_ranks: int) -> Sample:
    marks = meter.marks()
    return meter.run(launcher(num_ranks, program("first_allreduce"), marks), marks=marks)


def node(meter: Meter) -> Row:
    """Start 8 ranks on one node, until rank 0 has done its first all-reduce."""
    launches = [partial(_first_allreduce, meter, launcher, 8) for launcher in (echelon, torchrun)]
    ours, theirs = meter.interleave(*launches)
    return Row(
        title="8 ranks, one node, start to first all-reduce",
        figures=(
            Figure(
                what="wall time", unit="s", ours=walls(ours), theirs=walls(theirs), beside="torchrun",
                target=at_most_of_theirs(0.25),
            ),
            Figure(
                what="CPU time", unit="s", ours=cpus(ours), theirs=cpus(theirs), beside="torchrun",
                target=at_most_of_theirs(0.14),
            ),
        ),
    )  # fmt: skip


def again(meter: Meter) -> Row:
    """Start the same again on a node that has a pool, and a script that ends at its first line."""
    environ = {**meter.environ, "ECHELON_POOL": os.path.join(meter.folder, "pool")}
    meter.run([tool("echelon"), "pool", "start"], environ=environ)
    try:

        def pooled() -> Sample:
            marks = meter.marks()
            return meter.run(echelon(8, program("first_allreduce"), marks), marks=marks, environ=environ)

        def short() -> Sample:
            return meter.run([tool("echelon"), "run", "-n", "1", program("first_line")], environ=environ)

        pooled()  # the first runs import
        short()
        launches = [pooled, partial(_first_allreduce, meter, torchrun, 8), short]
        ours, theirs, ends = meter.interleave(*launches)
    finally:
        meter.run([tool("echelon"), "pool", "stop"], environ=environ)
    return Row(
        title="the second run in an allocation with a pool",
        figures=(
            Figure(
                what="8 ranks, start to first all-reduce", unit="s", ours=walls(ours), theirs=walls(theirs),
                beside="torchrun", target=at_most_of_theirs(0.05),
            ),
            Figure(what="a script that ends at its first line", unit="s", ours=walls(ends), target=at_most(0.15)),
        ),
    )  # fmt: skip


def further(meter: Meter) -> Row:
    """Add ranks to a node: the CPU time of each one more."""
    launches = [
        partial(_first_allreduce, meter, launcher, num_ranks)
        for launcher in (echelon, torchrun)
        for num_ranks in (FEW_RANKS, MANY_RANKS)
    ]
    ours_few, ours_many, theirs_few, theirs_many = meter.interleave(*launches)
    return Row(
        title="each further rank on a node",
        figures=(
            Figure(
                what="CPU time", unit="s", ours=_slope(ours_few, ours_many), theirs=_slope(theirs_few, theirs_many),
                beside="torchrun", target=at_most(0.1),
            ),
        ),
        notes=(f"the difference between {MANY_RANKS} and {FEW_RANKS} ranks, divided by {MANY_RANKS - FEW_RANKS}",),
    )  # fmt: skip


def _slope(few: Sequence[Sample], many: Sequence[Sample]) -> Spread:
    pairs = zip(few, many, strict=True)
    return Spread(tuple((more.cpu_seconds - less.cpu_seconds) / (MANY_RANKS - FEW_RANKS) for less, more in pairs))


def overhead(meter: Meter) -> Row:
    """Look at the launchers themselves while their two ranks sleep."""
    rounds = [
        (_residents(meter, echelon, residents.of_supervisor), _residents(meter, torchrun, residents.of_torchrun))
        for _ in range(meter.num_rounds)
    ]
    ours, theirs = zip(*rounds, strict=True)

    return Row(
        title="supervisor, agent and guard before user code",
        figures=(
            _sums("CPU time", "s", ours, theirs, lambda one: one.cpu_seconds, target=at_most(0.25)),
            _sums(
                "memory, shared pages divided (PSS)", "MB", ours, theirs, lambda one: one.pss_bytes / MEGABYTE,
                target=at_most(25),
            ),
            _sums("memory, private", "MB", ours, theirs, lambda one: one.private_bytes / MEGABYTE),
            _sums("memory, resident (RSS)", "MB", ours, theirs, lambda one: one.rss_bytes / MEGABYTE),
        ),
        notes=(_describe(ours[-1]), f"torch is loaded in: {_with_torch(ours)}; beside it: {_with_torch(theirs)}"),
    )  # fmt: skip


Rounds = Sequence[Sequence[Resident]]


def _sums(
    what: str, unit: str, ours: Rounds, theirs: Rounds, read: Callable[[Resident], float], *, target: Target = NO_TARGET
) -> Figure:
    """Add one quantity up over all processes of each round."""
    sums = [Spread(tuple(sum(read(one) for one in those) for those in rounds)) for rounds in (ours, theirs)]
    return Figure(what=what, unit=unit, ours=sums[0], theirs=sums[1], beside="torchrun's agent", target=target)


def _residents(meter: Meter, launcher: Launcher, look: Callable[[int], list[Resident]]) -> list[Resident]:
    marks = meter.marks()
    process = meter.start(launcher(FEW_RANKS, program("sleeping"), marks), output=subprocess.DEVNULL)
    try:
        _wait_for_marks(process, marks, FEW_RANKS)
        time.sleep(QUIET_SECONDS)
        return look(process.pid)
    finally:
        with open(os.path.join(marks, "end"), "w"):
            process.wait(60.0)


def _wait_for_marks(process: subprocess.Popen[bytes], marks: str, count: int) -> None:
    while len(os.listdir(marks)) < count:
        if process.poll() is not None:
            raise BenchmarkError(f"the launcher ended with exit code {process.returncode} before its ranks slept")
        time.sleep(0.02)


def _describe(those: Sequence[Resident]) -> str:
    parts = [f"{one.role} {one.cpu_seconds:.3f} CPU s, {one.pss_bytes / MEGABYTE:.1f} MB PSS, "
             f"{one.rss_bytes / MEGABYTE:.1f} MB RSS" for one in those]  # fmt: skip
    return "the last of the rounds: " + "; ".join(parts)


def _with_torch(rounds: Rounds) -> str:
    return ", ".join(sorted({one.role for those in rounds for one in those if one.has_torch})) or "none of them"


def commands(meter: Meter) -> Row:
    """Call what people wait for before anything has started."""
    script = os.path.join(meter.folder, "train.py")
    with open(script, "w") as file:
        file.write("import argparse\n\nimport numpy\nimport torch\nimport torch.distributed as dist\n")
    version, plan = meter.interleave(
        partial(meter.run, [tool("echelon"), "--version"]),
        partial(meter.run, [tool("echelon"), "run", "--dry-run", script]),
        num_rounds=meter.num_calls,
    )
    (python,) = meter.interleave(partial(meter.run, [sys.executable, "-c", "pass"]), num_rounds=meter.num_calls)
    return Row(
        title="commands that start nothing",
        figures=(
            Figure(what="`echelon --version`", unit="s", ours=walls(version), theirs=walls(python),
                   beside="`python -c pass`", target=at_most(0.1)),
            Figure(what="`echelon run --dry-run train.py`", unit="s", ours=walls(plan), theirs=walls(python),
                   beside="`python -c pass`", target=at_most(0.25)),
        ),
    )  # fmt: skip
