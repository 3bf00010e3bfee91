"""The rows of docs/gpu.md about trainings that are saved, killed and resumed."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import statistics
import threading
import time
from collections.abc import Callable, Mapping
from itertools import pairwise
from pathlib import Path

from benchmarks.gpu.bench import PROGRAMS, ROOT, Bench, Done
from benchmarks.gpu.row import FAILED, LOOSE, MOST_SHOWN, RELATIVE, SHOWN, Row, Seen, failed, ranks
from echelon.orders import codec, rehearsal
from echelon.orders.checkpoint import MEMORY
from echelon.orders.rehearsal import FREEZE_RANK, KILL_RANK, Fault, Rehearsal

NUM_STEPS, KILLED_AFTER = 60, 35
SAVED = ("--no-check", "--checkpoint-every", "10steps")
SAVES = ROOT / "benchmarks" / "programs"
PACE_SECONDS = 0.03  # the least of a step, so that a pause is seen
SUPERVISOR_SECONDS = 60.0  # in which the training must have made a checkpoint
_CONTINUED = re.compile(r"continues after step (\d+), from ([^;]*)")


def resumed(*words: str, how: str = "data", relative: float = RELATIVE) -> Callable[[Bench], Seen]:
    """Return a row in which a training on two ranks is killed; one rank goes on, or two where the model is spread."""

    def show(bench: Bench) -> Seen:
        directory = bench.folder / re.sub(r"\W+", "-", " ".join(("resumed", how, *words)))
        asked = (*words, "--steps", str(NUM_STEPS))
        first = (*ranks(bench), *SAVED, "--scale", how, "--run-dir", str(directory), "--max-restarts", "0")
        killed = bench.train(first, *asked, more=_fault(KILL_RANK, KILLED_AFTER))
        second = (*(("-n", "1") if how == "data" else ranks(bench)), *SAVED, "--scale", how)
        going = bench.train((*second, "--resume", str(directory)), *asked)
        told = _CONTINUED.search(going.err)
        if not killed.code or going.code or told is None:
            return failed(going if killed.code else killed)
        if min(going.by_step()) != int(told[1]):
            return Seen(how=FAILED, what=f"the first step is {min(going.by_step())}, but the run {told[0]}")
        note = f"killed after step {KILLED_AFTER}, {told[0]}"
        return _same(bench.alone(*asked), (killed, going), note, relative)

    return show


def restarted(bench: Bench) -> Seen:
    """Kill one rank of two: it is started again, and both go on."""
    words = ("--steps", "200")
    done = bench.train((*ranks(bench), *SAVED), *words, more=_fault(KILL_RANK, 100))
    return _paused(bench.alone(*words), done)


def succeeded(bench: Bench) -> Seen:
    """Kill the supervisor: another one starts, with new ranks."""
    directory = bench.folder / "run-of-a-supervisor"
    words = ("--steps", "200")
    striking = threading.Thread(target=_kill_supervisor, args=(directory,))
    striking.start()
    done = bench.train((*ranks(bench), *SAVED, "--run-dir", str(directory)), *words, more=_order(Rehearsal(pace=0.03)))
    striking.join()
    return _paused(bench.alone(*words), done)


def _kill_supervisor(directory: Path) -> None:
    """Kill the supervisor of a run once the run has a checkpoint."""
    deadline = time.monotonic() + SUPERVISOR_SECONDS
    while not any((directory / "checkpoints").glob("*/manifest.json")):
        if time.monotonic() > deadline:
            return  # the row says that nothing was continued
        time.sleep(0.1)
    rows = [json.loads(line) for line in (directory / "events.jsonl").read_text().splitlines()]
    os.kill(next(int(row["pid"]) for row in rows if row["event"] == "supervisor"), signal.SIGKILL)


def _paused(alone: Done, done: Done) -> Seen:
    """Return how long a fault stopped a training, and whether its losses are those of Python alone."""
    told = _CONTINUED.search(done.err)
    if done.code or told is None or not done.ends():
        return failed(done)
    before, after = max(pairwise(done.ends()), key=lambda pair: pair[1][1] - pair[0][1])
    again = max(0, before[0] - after[0] + 1)
    note = f"{after[1] - before[1]:.1f} s to the next step, {again} steps computed again, from {told[2]}"
    return _same(alone, (done,), note, RELATIVE)


def _same(alone: Done, parts: tuple[Done, ...], note: str, relative: float) -> Seen:
    """Compare each loss of a training in parts with that of Python alone."""
    losses = alone.by_step()
    seen = {step for part in parts for step in part.by_step()}
    if alone.code or seen != set(losses):
        return Seen(how=FAILED, what=f"{len(seen)} of {len(losses)} steps; {note}")
    worst = max(abs(loss - losses[step]) / abs(losses[step]) for part in parts for step, loss in part.by_step().items())
    what = f"{len(losses)} losses within {worst:.0e} of Python alone; {note}"
    return Seen(how=SHOWN if worst <= relative else FAILED, what=what)


def frozen(bench: Bench) -> Seen:
    """Freeze a rank: the run ends and names it."""
    options = (*ranks(bench), *SAVED, "--hang-timeout", "5", "--max-restarts", "0")
    done = bench.train(options, "--steps", "100", more=_fault(FREEZE_RANK, 30))
    said = done.line("hang: ")
    is_named = bool(done.code) and "rank 1" in said and "stopped by a signal" in said
    return Seen(how=SHOWN if is_named else FAILED, what=(said or "nothing was said")[: 2 * MOST_SHOWN])


def rehearsed(bench: Bench) -> Seen:
    """Run echelon's own rehearsal, with the faults that take no long waits: a row has 100 seconds."""
    folder = bench.folder / "rehearsed"
    folder.mkdir()
    shutil.copy(PROGRAMS / "train.py", folder)
    options = ("--json", "--faults", "kill-rank,tear-checkpoint,signal-before-limit", *ranks(bench))
    done = bench.echelon("rehearse", *options, "train.py", "--device", bench.device, folder=folder)
    if not done.out.startswith("{"):
        return failed(done)
    verdicts = json.loads(done.out)["faults"]
    lost = [f"{each['fault']}: {each['verdict']}" for each in verdicts if not each["survives"]]
    what = f"{len(verdicts) - len(lost)} of {len(verdicts)} faults are survived"
    return Seen(how=FAILED if lost else SHOWN, what="; ".join([what, *lost])[: 3 * MOST_SHOWN])


def stopped(bench: Bench) -> Seen:
    """Measure how long a save of 1 GB stops a training."""
    done = bench.script(SAVES / "saves_stop.py", "3", bench.device)
    pairs = re.findall(r"echelon ([\d.]+) torch ([\d.]+)", done.out)
    if done.code or not pairs:
        return failed(done)
    ours, theirs = (statistics.median(map(float, values)) for values in zip(*pairs, strict=True))
    return Seen(how=SHOWN, what=f"it stops for {ours:.3f} s, by torch.save() for {theirs:.3f} s")


def slowed(bench: Bench) -> Seen:
    """Measure a step with states in memory, and without."""
    seconds = []
    for more in ({}, {MEMORY: ""}):
        options = (*ranks(bench), "--scale", "data", "--bucket-mb", "25", "--no-check", "--checkpoint-every", "1h")
        size = ("600", "8192") if bench.device != "cpu" else ("60", "64")
        done = bench.run(options, SAVES / "saves_train.py", *size, bench.device, more=more)
        found = re.search(r"seconds ([\d.]+)", done.out)
        if done.code or found is None:
            return failed(done)
        seconds.append(float(found[1]) * 1e3)
    return Seen(how=SHOWN, what=f"a step takes {seconds[0]:.2f} ms, and {seconds[1]:.2f} ms without states in memory")


def _fault(kind: str, step: int) -> Mapping[str, str]:
    return _order(Rehearsal(Fault(kind, 1, step), pace=PACE_SECONDS))


def _order(order: Rehearsal) -> Mapping[str, str]:
    return {rehearsal.VARIABLE: codec.write(order)}


ROWS = (
    Row(name="resume", promise="a killed training is resumed on another number of ranks", show=resumed()),
    Row(
        name="resume-dropout",
        promise="the same with dropout, and a GradScaler for float16",
        show=resumed("--dropout", "0.3", "--precision", "float16", relative=LOOSE),
    ),
    Row(name="resume-pin", promise="the same with workers, pinned memory and a fused optimizer", show=resumed("--pin")),
    Row(name="resume-compile", promise="the same with torch.compile", show=resumed("--compile")),
    Row(name="resume-fsdp", promise="the same with --scale fsdp, on two ranks again", show=resumed(how="fsdp")),
    Row(name="resume-tensor", promise="the same with --scale tensor", show=resumed("--blocks", "4", how="tensor")),
    Row(
        name="resume-pipeline", promise="the same with --scale pipeline", show=resumed("--blocks", "4", how="pipeline")
    ),
    Row(name="restart", promise="a rank is killed, and the run goes on", show=restarted),
    Row(name="supervisor", promise="the supervisor is killed, and another one goes on", show=succeeded),
    Row(name="frozen", promise="a rank that stops is named", show=frozen),
    Row(name="rehearse", promise="echelon rehearse on two ranks", show=rehearsed),
    Row(name="save", promise="how long a save of 1 GB stops a training", show=stopped, is_alone=True),
    Row(name="states", promise="what states in the node's memory cost", show=slowed, is_alone=True),
)
