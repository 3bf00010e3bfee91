"""Measure what a failure costs a training: `python -m benchmarks.survive`, from the repository root.

A training whose steps take 30 ms is disturbed. A pause is the time from the last step before the fault to the next step
that ends. The rows:

    rank        one rank of four is killed; beside us torchrun trains the same by hand, with DDP and snapshots as often
    supervisor  the supervisor of two ranks is killed
    node        one of two Slurm nodes loses its power; a spare node takes over
    job         a Slurm job is told to end; the next job of its chain goes on. Beside us `scontrol requeue` starts the
                same training anew, which saves nothing
    resume      a training with 1,000,000 samples goes on in the middle of an epoch: the time to its first step

Faults strike at random steps, in turns with the program beside us. Examples:

    python -m benchmarks.survive --only rank --rounds 20
    python -m benchmarks.survive --only node job --json
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
from collections.abc import Callable, Sequence
from dataclasses import asdict

from benchmarks import rows_survive_slurm as in_slurm
from benchmarks.disturbed import Pause, disturb, kill_supervisor
from benchmarks.figures import Figure, Row, Spread, at_most, circumstances, markdown
from benchmarks.meter import PROGRAMS, BenchmarkError, clean_environ
from echelon.orders import codec, rehearsal
from echelon.orders.rehearsal import KILL_RANK, Fault, Rehearsal

NUM_RANKS, EVERY = 4, 20
RESUMED_AFTER = 15_000
"""Steps of 32 samples: about half of an epoch of a million."""
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


def _rank(num_rounds: int, chance: random.Random) -> Row:
    ours, theirs = [], []
    for number in range(num_rounds):
        rank, step = chance.randrange(NUM_RANKS), EVERY * chance.randint(1, 3) + chance.randint(4, 18)
        _tell(f"round {number + 1} of {num_rounds}: rank {rank} dies after step {step}")
        ours.append(_echelon(rank, step))
        theirs.append(_torchrun(rank, step))
    return _row(
        f"a rank of {NUM_RANKS} is killed, checkpoints every {EVERY} steps", ours, 0.2,
        notes=(_told("echelon", ours), _told("torchrun, beside it", theirs)),
    )  # fmt: skip


def _echelon(rank: int, step: int) -> Pause | None:
    line = ["-m", "echelon", "run", "-n", str(NUM_RANKS), "--scale", "data", "--checkpoint-every", f"{EVERY}steps"]
    fault = {rehearsal.VARIABLE: codec.write(Rehearsal(Fault(KILL_RANK, rank, step)))}
    return disturb([sys.executable, *line, os.path.join(PROGRAMS, "survive_plain.py")], more=fault)


def _torchrun(rank: int, step: int) -> Pause | None:
    line = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={NUM_RANKS}", "--max-restarts=3"]
    return disturb([sys.executable, *line, os.path.join(PROGRAMS, "survive_ddp.py"), str(rank), str(step)])


def _supervisor(num_rounds: int, chance: random.Random) -> Row:
    ours = []
    for number in range(num_rounds):
        step = chance.randint(30, 70)
        _tell(f"round {number + 1} of {num_rounds}: the supervisor dies after step {step}")
        line = ["-m", "echelon", "run", "-n", "2", "--scale", "data", "--checkpoint-every", "1h", "--run-dir", "run"]
        program = os.path.join(PROGRAMS, "survive_plain.py")
        ours.append(disturb([sys.executable, *line, program], after=step, strike=kill_supervisor))
    return _row("the supervisor of 2 ranks is killed", ours, 15, notes=(_told("echelon", ours),))


def _resume(num_rounds: int, _chance: random.Random) -> Row:
    seconds = []
    for number in range(num_rounds):
        _tell(f"round {number + 1} of {num_rounds}: a training of 1,000,000 samples is resumed")
        with tempfile.TemporaryDirectory(prefix="survive-") as folder:
            line = ["run", "-n", "2", "--scale", "data", "--no-check", "--checkpoint-every", f"{RESUMED_AFTER}steps"]
            program = os.path.join(PROGRAMS, "survive_million.py")
            _shown(folder, [*line, "--run-dir", "first", program, str(RESUMED_AFTER + 1)])
            said = _shown(folder, [*line, "--resume", "first", program, str(RESUMED_AFTER + 10)])
        found = _REPEATED.search(said)
        if found is None or int(found[1]) != RESUMED_AFTER:
            raise BenchmarkError(f"the training was not resumed: {said[-500:]}")
        seconds.append(float(found[2]))
    figure = Figure(what="its variables are put back", unit="s", ours=Spread(tuple(seconds)), target=at_most(2))
    return Row(title=f"a loader of 1,000,000 samples, resumed after step {RESUMED_AFTER:,}", figures=(figure,))


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


def _row(title: str, ours: Sequence[Pause | None], limit: float, *, notes: tuple[str, ...]) -> Row:
    survived = [one for one in ours if one is not None]
    if not survived:
        raise BenchmarkError("no training of ours came to its end")
    return Row(
        title=title,
        figures=(
            Figure(what="to the next step", unit="s", ours=_seconds(survived), target=at_most(limit)),
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
        f"{again.median:g} ({min(again.values):g}–{max(again.values):g}) steps computed again"
    )


def _seconds(pauses: Sequence[Pause]) -> Spread:
    return Spread(tuple(one.seconds for one in pauses))


def _again(pauses: Sequence[Pause]) -> Spread:
    return Spread(tuple(float(one.num_again) for one in pauses))


def _tell(text: str) -> None:
    print(f"{text} …", file=sys.stderr)


ROWS: dict[str, Callable[[int, random.Random], Row]] = {
    "rank": _rank, "supervisor": _supervisor, "node": _node, "job": _job, "resume": _resume,
}  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
