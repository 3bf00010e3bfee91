"""The rows of docs/gpu.md, a function each: it returns the observation, or the reason why there is none."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable

from benchmarks.gpu import rows_survive
from benchmarks.gpu.bench import PROGRAMS, ROOT, Bench
from benchmarks.gpu.row import (
    FAILED,
    LOOSE,
    MOST_SHOWN,
    RELATIVE,
    SHOWN,
    SKIPPED,
    Row,
    Seen,
    compare,
    failed,
    ranks,
    same_losses,
)
from echelon.node.survey import take
from echelon.node.survey.sampling.sampler import Sampler

SCRIPTS = ROOT / "tests" / "scripts"


def importing(package: str) -> Callable[[Bench], Seen]:
    """Return a row that imports a package before the ranks are forked."""

    def show(bench: Bench) -> Seen:
        if package in bench.missing:
            return Seen(how=SKIPPED, what=f"{package} is not installed")
        script = bench.folder / f"imports_{package}.py"
        script.write_text((PROGRAMS / "imports.py").read_text().replace("PACKAGE", package))
        directory = bench.folder / f"run-{package}"
        words = ("-n", "2", "--share-devices", "--scale", "off", "--run-dir", str(directory))
        done = bench.run(words, script, bench.device)
        if done.code or "computed True" not in done.out:
            return failed(done)
        rows = [json.loads(line) for line in (directory / "events.jsonl").read_text().splitlines()]
        imported = next(row for row in rows if row["event"] == "imported")
        if imported["why_exec"]:
            return Seen(how=SHOWN, what=f"by exec, for a fork is not safe: {imported['why_exec']}")
        return Seen(how=SHOWN, what=f"forked after {imported['seconds']:.1f} s of imports, and each rank computed")

    return show


def one_rank(bench: Bench) -> Seen:
    return same_losses(bench, bench.train(("-n", "1")))


def two_ranks(bench: Bench) -> Seen:
    if bench.device != "cpu" and bench.num_devices < 2:
        return Seen(how=SKIPPED, what="there is one GPU")
    return same_losses(bench, bench.train(("-n", "2", "--no-check")))


def two_on_one(bench: Bench) -> Seen:
    done = bench.train(("-n", "2", "--share-devices", "--no-check"), more={"CUDA_VISIBLE_DEVICES": "0"})
    if bench.device != "cpu" and not done.code and "ranks share a device" not in done.err:
        return Seen(how=FAILED, what="no line says that the ranks share a device")
    return same_losses(bench, done, note="by gloo" if done.line("by gloo") else "")


def first_step(bench: Bench) -> Seen:
    done = bench.train(ranks(bench))
    said = done.line("first step: ")
    if done.code or not said:
        return failed(done)
    return Seen(how=SHOWN if "equals that of one device" in said else FAILED, what=said[:MOST_SHOWN])


def split(how: str, *words: str) -> Callable[[Bench], Seen]:
    """Return a row in which a model is split over ranks."""

    def show(bench: Bench) -> Seen:
        options = (*ranks(bench), "--scale", how, "--no-check")
        return same_losses(bench, bench.train(options, *words), *words)

    return show


def exact(bench: Bench) -> Seen:
    alone = bench.train(("-n", "1", "--exact", "4", "--no-check"))
    other = bench.train((*ranks(bench), "--exact", "4", "--no-check"))
    for done in (alone, other):
        if done.code or not done.weights():
            return failed(done)
    is_same = (alone.losses(), alone.weights()) == (other.losses(), other.weights())
    what = "the bits of 1 and 2 ranks are " + ("equal" if is_same else "not equal")
    return Seen(how=SHOWN if is_same else FAILED, what=what)


def dropout(bench: Bench) -> Seen:
    words = ("--dropout", "0.3")
    seen = same_losses(bench, bench.train((*ranks(bench), "--no-check"), *words), *words)
    if seen.how == SHOWN or "--same-random" not in bench.echelon("run", "--help").out:
        return seen
    return same_losses(bench, bench.train((*ranks(bench), "--no-check", "--same-random"), *words), *words)


def idiom(*words: str, relative: float = RELATIVE) -> Callable[[Bench], Seen]:
    """Return a row in which train.py uses what scripts for GPUs use."""

    def show(bench: Bench) -> Seen:
        return same_losses(bench, bench.train((*ranks(bench), "--no-check"), *words), *words, relative=relative)

    return show


def foreign(bench: Bench) -> Seen:
    """Run the scripts of tests/scripts that name CUDA."""
    paths = [path for path in sorted(SCRIPTS.glob("*.py")) if "cuda" in path.read_text(encoding="utf-8")]
    alone = {path: bench.script(path) for path in paths}
    working = [path for path in paths if not alone[path].code]
    unequal = []
    for path in working:
        seen = compare(alone[path], bench.run((*ranks(bench), "--scale", "data"), path), relative=LOOSE)
        if seen.how != SHOWN:
            unequal.append(f"{path.stem}: {seen.what}")
    what = f"{len(working) - len(unequal)} of {len(working)} scripts have the losses of Python alone"
    if len(working) < len(paths):
        what += f"; {len(paths) - len(working)} fails on a GPU by Python alone too"
    return Seen(how=FAILED if unequal else SHOWN, what="; ".join([what, *unequal])[: 4 * MOST_SHOWN])


def proved(bench: Bench) -> Seen:
    words = ("--steps", "10", str(PROGRAMS / "train.py"), "--device", bench.device)
    done = bench.echelon("prove", *ranks(bench), *words)
    verdict = next((line for line in done.out.splitlines() if line.startswith("equal within rounding")), "")
    return Seen(how=SHOWN, what=verdict) if verdict and not done.code else failed(done)


def by_nccl(bench: Bench) -> Seen:
    if bench.device == "cpu":
        return Seen(how=SKIPPED, what="NCCL needs a GPU")
    options = ("-n", str(bench.num_devices), "--scale", "off")
    done = bench.run(options, PROGRAMS / "by_hand.py", "--device", bench.device, "--backend", "nccl")
    if done.code or not done.milliseconds():
        return failed(done)
    return Seen(how=SHOWN, what=f"a step of {bench.num_devices} ranks takes {done.milliseconds():.2f} ms")


def overhead(bench: Bench) -> Seen:
    words = ("--steps", "200", "--width", "1024")
    backend = "gloo" if bench.device == "cpu" or bench.num_devices < 2 else "nccl"
    alone = bench.train(("-n", "1"), *words)
    several = bench.train((*ranks(bench), "--no-check"), *words)
    options = (*ranks(bench), "--scale", "off")
    arguments = ("--device", bench.device, "--backend", backend, *words)
    by_hand = bench.run(options, PROGRAMS / "by_hand.py", *arguments)
    rows = {"Python alone": bench.alone(*words), "echelon -n 1": alone, "echelon -n 2": several, "DDP by hand": by_hand}
    for done in rows.values():
        if done.code or not done.milliseconds():
            return failed(done)
    steps = ", ".join(f"{name} {done.milliseconds():.2f} ms" for name, done in rows.items())
    return Seen(how=SHOWN, what=f"a step takes: {steps} ({backend})")


def sampling(bench: Bench) -> Seen:
    if bench.device == "cpu":
        return Seen(how=SKIPPED, what="there is no device")
    survey = take.survey(take.SurveyRequest(), os.environ)
    devices = [device for device in survey.devices.devices if device.is_visible]
    if len(devices) != bench.num_devices:
        return Seen(how=FAILED, what=f"{len(devices)} devices are seen, and torch has {bench.num_devices}")
    sampler = Sampler("/", survey, os.environ, time.monotonic())
    with bench.busy() as is_on:
        while is_on():
            sampler.look(time.monotonic())
            time.sleep(1.0)
    most = max([0, *(row["most"] for row in sampler.message(time.monotonic())["devices"])])
    return Seen(how=SHOWN if most else FAILED, what=f"{len(devices)} devices are seen, one of them up to {most} % busy")


def out_of_memory(bench: Bench) -> Seen:
    if bench.device == "cpu":
        return Seen(how=SKIPPED, what="a CPU's memory is the machine's")
    done = bench.run(("-n", "1"), PROGRAMS / "full.py", bench.device)
    said = done.line("memory: ")
    return Seen(how=SHOWN if said and done.code else FAILED, what=(said or "no line explains it")[:MOST_SHOWN])


ROWS = (
    Row(name="import", promise="import, fork and device work in warm ranks", show=importing("torch")),
    Row(name="transformers", promise="the same with transformers imported", show=importing("transformers")),
    Row(name="lightning", promise="the same with lightning imported", show=importing("lightning")),
    Row(name="one", promise="one rank trains as Python alone", show=one_rank),
    Row(name="two", promise="two ranks on two GPUs train as one", show=two_ranks),
    Row(name="shared", promise="two ranks on one GPU train as one, by gloo", show=two_on_one),
    Row(name="check", promise="the first step is compared with one device", show=first_step),
    Row(
        name="fsdp", promise="weights that are spread over ranks (--scale fsdp) train as one device", show=split("fsdp")
    ),
    Row(
        name="tensor",
        promise="layers that are split over ranks (--scale tensor)",
        show=split("tensor", "--blocks", "4"),
    ),
    Row(name="pipeline", promise="a model in stages (--scale pipeline)", show=split("pipeline", "--blocks", "4")),
    Row(name="exact", promise="the same bits on one and two ranks (--exact 4)", show=exact),
    Row(name="dropout", promise="dropout draws the same numbers as on one device", show=dropout),
    Row(name="bf16", promise="autocast with bfloat16", show=idiom("--precision", "bfloat16", relative=LOOSE)),
    Row(
        name="fp16",
        promise="autocast with float16 and a GradScaler",
        show=idiom("--precision", "float16", relative=LOOSE),
    ),
    Row(name="pin", promise="workers, pinned memory, copies that do not wait, a fused optimizer", show=idiom("--pin")),
    Row(name="compile", promise="torch.compile", show=idiom("--compile")),
    Row(name="scripts", promise="scripts of tests/scripts that use CUDA", show=foreign),
    Row(name="prove", promise="echelon prove on two ranks", show=proved),
    Row(name="nccl", promise="a script that distributes itself by NCCL", show=by_nccl),
    Row(
        name="overhead",
        promise="the time of a step, compared with plain Python and DDP by hand",
        show=overhead,
        is_alone=True,
    ),
    Row(name="sampling", promise="how busy the devices are", show=sampling, is_alone=True),
    Row(name="memory", promise="a full device is explained", show=out_of_memory, is_alone=True),
    *rows_survive.ROWS,
)
