"""Measure what a failure costs a training: `python -m benchmarks.survive`, from the repository root.

A training whose steps take 30 ms is disturbed. A pause is the time from the last step before the fault to the next step
that ends. The rows:

    rank-2, rank-4, rank-8      one rank of so many is killed; beside us torchrun trains the same by hand, with DDP and
                snapshots as often. A step ends when all ranks have given their gradients
    rank-2x2, rank-4x2          one rank on 2 or 4 Slurm nodes of 2 ranks is killed; beside us srun starts torchrun
    supervisor  the supervisor of two ranks is killed
    node        one of two Slurm nodes loses its power; a spare node takes over
    job         a Slurm job is told to end; the next job of its chain goes on. Beside us `scontrol requeue` starts the
                same training anew, which saves nothing
    resume-1000, resume-10000, resume-100000    a training with 1,000,000 samples goes on after so many steps: the time
                to its first step, which should not grow

Faults strike at random steps, in turns with the program beside us. Examples:

    python -m benchmarks.survive --only rank-2 rank-4 --rounds 20
    python -m benchmarks.survive --only node job --json
"""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import asdict
from functools import partial

from benchmarks import rows_survive_slurm as in_slurm
from benchmarks.disturbed import EVERY, Pause, disturb, kill_supervisor, lose_rank
from benchmarks.figures import Figure, Row, Spread, at_most, circumstances, markdown
from benchmarks.meter import PROGRAMS, BenchmarkError, clean_environ

_REPEATED = re.compile(r"continues after step (\d+), from .*; .* in ([\d.]+) s")


def main() -> int:
    """Measure, and print the table."""
    options = _options()
    rows = [ROWS[kind](options.rounds, random.Random(options.seed)) for kind in ROWS if kind in options.only]
    if options.json:
        print(json.dumps([asdict(row) for row in rows], indent=1))
    else:
        print(f"{circumstances('survive', options.rounds)}\n\n{markdown(rows)}")
    return 0 if all(figure.is_reached for row in rows for figure in row.figures) else 1


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.survive", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=5, help="how many faults of each kind")
    parser.add_argument("--seed", type=int, default=0, help="chooses the ranks and the steps")
    parser.add_argument("--only", nargs="+", choices=tuple(ROWS), default=tuple(ROWS), help="the rows to measure")
    parser.add_argument("--json", action="store_true", help="print the values of all rounds")
    return parser.parse_args()


def _rank(num_rounds: int, chance: random.Random, *, num_nodes: int = 0, ranks_per_node: int) -> Row:
    """Measure on Slurm nodes, or on this machine where `num_nodes` is 0."""
    num_ranks = max(1, num_nodes) * ranks_per_node
    faults = [
        (chance.randrange(num_ranks), EVERY * chance.randint(1, 3) + chance.randint(4, 18)) for _ in range(num_rounds)
    ]
    if num_nodes:
        pairs = in_slurm.lose_ranks(faults, num_nodes, ranks_per_node, _tell)
    else:
        pairs = [lose_rank(rank, step, ranks_per_node, _tell) for rank, step in faults]
    ours, theirs = zip(*pairs, strict=True)
    where = f" on {num_nodes} Slurm nodes" if num_nodes else ""
    return _row(
        f"a rank of {num_ranks}{where} is killed, checkpoints every {EVERY} steps", ours, 0.2, 1.0,
        notes=(_told("echelon", ours), _told("torchrun, beside it", theirs)),
    )  # fmt: skip


def _supervisor(num_rounds: int, chance: random.Random) -> Row:
    ours = []
    for number in range(num_rounds):
        step = chance.randint(30, 70)
        _tell(f"round {number + 1} of {num_rounds}: the supervisor dies after step {step}")
        line = ["-m", "echelon", "run", "-n", "2", "--scale", "data", "--checkpoint-every", "1h", "--run-dir", "run"]
        program = os.path.join(PROGRAMS, "survive_plain.py")
        ours.append(disturb([sys.executable, *line, program], after=step, strike=kill_supervisor))
    return _row("the supervisor of 2 ranks is killed", ours, 15, notes=(_told("echelon", ours),))


def _resume(num_rounds: int, _chance: random.Random, *, num_steps: int) -> Row:
    seconds = []
    for number in range(num_rounds):
        _tell(f"round {number + 1} of {num_rounds}: a training is resumed after step {num_steps:,}")
        with tempfile.TemporaryDirectory(prefix="survive-") as folder:
            line = ["run", "-n", "2", "--scale", "data", "--no-check", "--checkpoint-every", f"{num_steps}steps"]
            program = os.path.join(PROGRAMS, "survive_million.py")
            _shown(folder, [*line, "--run-dir", "first", program, str(num_steps + 1)])
            said = _shown(folder, [*line, "--resume", "first", program, str(num_steps + 10)])
        found = _REPEATED.search(said)
        if found is None or int(found[1]) != num_steps:
            raise BenchmarkError(f"the training was not resumed: {said[-500:]}")
        seconds.append(float(found[2]))
    figure = Figure(what="its variables are put back", unit="s", ours=Spread(tuple(seconds)), target=at_most(2))
    return Row(title=f"a loader of 1,000,000 samples, resumed after step {num_steps:,}", figures=(figure,))


def _shown(folder: str, words: Sequence[str]) -> str:
    environ = {**clean_environ(), "OMP_NUM_THREADS": "1"}
    line = [sys.executable, "-m", "echelon", *words]
    done = subprocess.run(line, cwd=folder, env=environ, capture_output=True, text=True)
    if done.returncode:
        raise BenchmarkError(f"{words[0]} ended with exit code {done.returncode}: {done.stderr[-500:]}")
    return done.stderr


def _node(num_rounds: int, chance: random.Random) -> Row:
    ours = [in_slurm.lose_node(chance.randint(30, 60), _tell) for _ in range(num_rounds)]
    return _row("1 of 2 Slurm nodes loses its power, --spares 1", ours, 15, notes=(_told("echelon", ours),))


def _job(num_rounds: int, chance: random.Random) -> Row:
    steps = [chance.randint(20, 40) for _ in range(num_rounds)]
    ours = [in_slurm.chain(step, _tell) for step in steps]
    theirs = [in_slurm.requeue(step, _tell) for step in steps]
    notes = (_told("echelon submit --chain 2", ours), _told("scontrol requeue, beside it", theirs))
    return _row("a Slurm job is told to end, and the next one goes on", ours, 10, notes=notes)


def _row(
    title: str, ours: Sequence[Pause | None], limit: float, limit_99: float = math.inf, *, notes: tuple[str, ...]
) -> Row:
    survived = [one for one in ours if one is not None]
    if not survived:
        raise BenchmarkError("no training of ours came to its end")
    return Row(
        title=title,
        figures=(
            Figure(what="to the next step", unit="s", ours=_seconds(survived), target=at_most(limit)),
            Figure(
                what="to the next step, p99", unit="s", ours=Spread((_seconds(survived).p99,)), target=at_most(limit_99)
            ),
            Figure(what="steps computed again", unit="steps", ours=_again(survived), target=at_most(0)),
        ),
        notes=notes,
    )


def _told(name: str, pauses: Sequence[Pause | None]) -> str:
    """Say how many trainings came to their end, and what the fault cost them."""
    survived = [one for one in pauses if one is not None]
    text = f"{name}: {len(survived)} of {len(pauses)} trainings came to their end"
    if not survived:
        return text
    seconds, again = _seconds(survived), _again(survived)
    return (
        f"{text}; to the next step {seconds.median:.2f} ({min(seconds.values):.2f}–{max(seconds.values):.2f}) s, "
        f"p99 {seconds.p99:.2f} s, "
        f"{again.median:g} ({min(again.values):g}–{max(again.values):g}) steps computed again"
    )


def _seconds(pauses: Sequence[Pause]) -> Spread:
    return Spread(tuple(one.seconds for one in pauses))


def _again(pauses: Sequence[Pause]) -> Spread:
    return Spread(tuple(float(one.num_again) for one in pauses))


def _tell(text: str) -> None:
    print(f"{text} …", file=sys.stderr)


ROWS: dict[str, Callable[[int, random.Random], Row]] = {
    **{f"rank-{number}": partial(_rank, ranks_per_node=number) for number in (2, 4, 8)},
    **{f"rank-{number}x2": partial(_rank, num_nodes=number, ranks_per_node=2) for number in (2, 4)},
    "supervisor": _supervisor, "node": _node, "job": _job,
    **{f"resume-{number}": partial(_resume, num_steps=number) for number in (1000, 10_000, 100_000, 1_000_000)},
}  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
