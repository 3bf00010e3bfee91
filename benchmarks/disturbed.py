"""A training that prints the time of each step, and what a fault in its middle costs it."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from benchmarks.meter import PROGRAMS, BenchmarkError, clean_environ
from echelon.orders import codec, rehearsal
from echelon.orders.rehearsal import KILL_RANK, Fault, Rehearsal

NUM_STEPS, EVERY = 100, 20
"""Steps of a training, and those from one checkpoint to the next."""
LIMIT_SECONDS = 90
"""A training takes 10 s; one that has not ended by then waits for a rank that does not come."""
_STEP = re.compile(r"step (\d+) at ([\d.]+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Pause:
    """What a fault did to a training."""

    seconds: float
    """From the last step before the fault to the next one."""
    num_again: int
    """Steps that were computed a second time."""


def longest_pause(shown: str) -> Pause | None:
    """Return the longest pause of a training, from what it printed; None if it did not come to its end."""
    steps = [(int(number), float(at)) for number, at in _STEP.findall(shown)]
    if not steps or steps[-1][0] != NUM_STEPS:
        return None
    before, after = max(pairwise(steps), key=lambda pair: pair[1][1] - pair[0][1])
    return Pause(seconds=after[1] - before[1], num_again=before[0] - after[0] + 1)


def disturb(
    line: Sequence[str],
    *,
    more: Mapping[str, str] = {},
    after: int = 0,
    strike: Callable[[str], None] = lambda _folder: None,
) -> Pause | None:
    """Run a training in a folder of its own; call `strike` with the folder once it has printed step `after`."""
    environ = {**clean_environ(), "OMP_NUM_THREADS": "1", **more}
    with tempfile.TemporaryDirectory(prefix="survive-") as folder:
        path = os.path.join(folder, "shown")
        with open(path, "w") as shown:
            process = subprocess.Popen(
                ["timeout", str(LIMIT_SECONDS), *line], cwd=folder, env=environ, stdout=shown, stderr=subprocess.STDOUT
            )
        if after:
            wait_for_step(path, after)
            strike(folder)
        code = process.wait()
        with open(path) as file:
            text = file.read()
    pause = longest_pause(text) if code == 0 else None
    if pause is None:
        print(f"{' '.join(line[-6:])} ended with exit code {code}: {text[-300:]}", file=sys.stderr)
    return pause


def lose_rank(
    rank: int,
    step: int,
    ranks_per_node: int,
    tell: Callable[[str], None],
    *,
    within: Sequence[str] = (),
    meeting: Sequence[str] = ("--standalone",),
    more: Mapping[str, str] = {},
) -> tuple[Pause | None, Pause | None]:
    """Kill a rank after a step, under echelon and under torchrun, which `meeting` tells how to start its nodes."""
    tell(f"rank {rank} dies after step {step}")
    line = ["run", "-n", str(ranks_per_node), "--scale", "data", "--checkpoint-every", f"{EVERY}steps"]
    fault = {rehearsal.VARIABLE: codec.write(Rehearsal(Fault(KILL_RANK, rank, step)))}
    program = os.path.join(PROGRAMS, "survive_plain.py")
    ours = disturb([*within, sys.executable, "-m", "echelon", *line, program], more={**more, **fault})
    srun = ["srun", "--ntasks-per-node=1"] if within else []
    line = ["torch.distributed.run", *meeting, f"--nproc-per-node={ranks_per_node}", "--max-restarts=3"]
    by_hand = [os.path.join(PROGRAMS, "survive_ddp.py"), str(rank), str(step)]
    return ours, disturb([*within, *srun, sys.executable, "-m", *line, *by_hand], more=more)


def wait_for_step(path: str, step: int) -> None:
    """Wait until a file shows a step; raise BenchmarkError if none comes."""
    deadline = time.monotonic() + LIMIT_SECONDS
    while time.monotonic() < deadline:
        if os.path.exists(path):
            with open(path, errors="replace") as file:
                if f"step {step} at" in file.read():
                    return
        time.sleep(0.02)
    raise BenchmarkError(f"the training did not reach step {step}")


def kill_supervisor(folder: str) -> None:
    """Kill the supervisor of the run in `folder`/run."""
    os.kill(int(events(folder, "supervisor")[-1]["pid"]), signal.SIGKILL)


def events(folder: str, kind: str) -> list[dict[str, str]]:
    """Return the events of one kind of the run in `folder`/run."""
    with open(os.path.join(folder, "run", "events.jsonl")) as file:
        return [event for event in map(json.loads, file) if event["event"] == kind]
