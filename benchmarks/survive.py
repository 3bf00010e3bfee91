"""Measure what a killed rank costs: `python -m benchmarks.survive`, from the repository root.

A rank of four is killed by SIGKILL in the middle of a training whose steps take 30 ms. Two figures: the time from the
last step before the kill to the next step that ends, and the number of steps that are computed a second time. echelon
runs an unchanged script for one device; torchrun beside it runs the same training by hand, with DDP and snapshots as
often. Both are run in turns. Examples:

    python -m benchmarks.survive --rounds 20
    python -m benchmarks.survive --json
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise

from benchmarks.figures import Figure, Row, Spread, at_most, circumstances, markdown
from benchmarks.meter import PROGRAMS, BenchmarkError, clean_environ
from echelon import rehearsal_order
from echelon.rehearsal_order import KILL_RANK, Fault, Rehearsal

NUM_RANKS, EVERY, NUM_STEPS = 4, 20, 100
LIMIT_SECONDS = 40
"""A training takes 10 s; one that has not ended by then waits for a rank that does not come."""
_STEP = re.compile(r"step (\d+) at ([\d.]+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Pause:
    """What a killed rank did to a training."""

    seconds: float
    """From the last step before the kill to the next one."""
    num_again: int
    """Steps that were computed a second time."""


def main() -> int:
    """Measure, and print the table."""
    options = _options()
    chance, ours, theirs = random.Random(options.seed), [], []
    for number in range(options.rounds):
        rank, step = chance.randrange(NUM_RANKS), EVERY * chance.randint(1, 3) + chance.randint(4, 18)
        print(f"round {number + 1} of {options.rounds}: rank {rank} dies after step {step} …", file=sys.stderr)
        ours.append(_echelon(rank, step))
        theirs.append(_torchrun(rank, step))
    row = _row(ours, theirs)
    print(json.dumps(asdict(row), indent=1) if options.json else _page(row, options.rounds))
    return 0 if all(figure.is_reached for figure in row.figures) else 1


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.survive", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=10, help="how many ranks are killed under each program")
    parser.add_argument("--seed", type=int, default=0, help="chooses the ranks and the steps")
    parser.add_argument("--json", action="store_true", help="print the values of all rounds")
    return parser.parse_args()


def _echelon(rank: int, step: int) -> Pause | None:
    line = ["-m", "echelon", "run", "-n", str(NUM_RANKS), "--scale", "data", "--checkpoint-every", f"{EVERY}steps"]
    fault = {rehearsal_order.VARIABLE: rehearsal_order.variable(Rehearsal(Fault(KILL_RANK, rank, step)))}
    return _run([*line, os.path.join(PROGRAMS, "survive_plain.py")], fault)


def _torchrun(rank: int, step: int) -> Pause | None:
    line = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={NUM_RANKS}", "--max-restarts=3"]
    return _run([*line, os.path.join(PROGRAMS, "survive_ddp.py"), str(rank), str(step)], {})


def _run(words: Sequence[str], more: Mapping[str, str]) -> Pause | None:
    environ = {**clean_environ(), "OMP_NUM_THREADS": "1", **more}
    with tempfile.TemporaryDirectory(prefix="survive-") as folder:
        line = ["timeout", str(LIMIT_SECONDS), sys.executable, *words]
        done = subprocess.run(line, cwd=folder, env=environ, capture_output=True, text=True)
    steps = [(int(number), float(at)) for number, at in _STEP.findall(done.stdout)]
    if done.returncode or not steps or steps[-1][0] != NUM_STEPS:
        print(f"{words[1]} ended with exit code {done.returncode}: {done.stderr[-300:]}", file=sys.stderr)
        return None
    pairs = list(pairwise(steps))
    before, after = max(pairs, key=lambda pair: pair[1][1] - pair[0][1])
    return Pause(seconds=after[1] - before[1], num_again=before[0] - after[0] + 1)


def _row(ours: Sequence[Pause | None], theirs: Sequence[Pause | None]) -> Row:
    survived = [one for one in ours if one is not None]
    if not survived:
        raise BenchmarkError("no training of ours came to its end")
    return Row(
        title=f"a rank of {NUM_RANKS} is killed, checkpoints every {EVERY} steps",
        figures=(
            Figure(what="to the next step", unit="s", ours=_seconds(survived), target=at_most(0.2)),
            Figure(what="steps computed again", unit="steps", ours=_again(survived), target=at_most(0)),
        ),
        notes=(_told("echelon", ours), _told("torchrun, beside it", theirs)),
    )


def _told(name: str, pauses: Sequence[Pause | None]) -> str:
    """Say how many trainings came to their end, and what the kill cost them."""
    survived = [one for one in pauses if one is not None]
    text = f"{name}: {len(survived)} of {len(pauses)} trainings came to their end"
    if not survived:
        return text
    seconds, again = _seconds(survived), _again(survived)
    return (
        f"{text}; to the next step {seconds.median:.2f} ({min(seconds.values):.2f}–{max(seconds.values):.2f}) s, "
        f"{again.median:g} ({min(again.values):g}–{max(again.values):g}) steps computed again"
    )


def _seconds(pauses: Sequence[Pause]) -> Spread:
    return Spread(tuple(one.seconds for one in pauses))


def _again(pauses: Sequence[Pause]) -> Spread:
    return Spread(tuple(float(one.num_again) for one in pauses))


def _page(row: Row, num_rounds: int) -> str:
    return f"{circumstances('survive', num_rounds)}\n\n{markdown([row])}"


if __name__ == "__main__":
    sys.exit(main())
