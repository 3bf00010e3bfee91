"""`echelon run --scale auto-fit`: the simplest way to scale that fits, or one error before anything is started."""

import json
import os
import subprocess
from pathlib import Path

import pytest
from tests import warm
from tests.estimate.logs import MIB, of_model
from tests.plan.test_fit import SCRIPT
from tests.tiers import some

from echelon.errors import UsageError
from echelon.estimate import choice
from echelon.estimate.choice import MARGIN
from echelon.estimate.devices import Device
from echelon.estimate.log import EventLog
from echelon.estimate.verdict import judge
from echelon.launch.auto_fit import AvailableMemory, choose
from echelon.launch.fit import TracedTraining
from echelon.orders.scale import DEFAULT, ScaleOptions

GIB = 1 << 30


def log() -> EventLog:
    """Return the log of a model of 1040 MiB with two states, in eight blocks, and few activations."""
    return of_model(num_blocks=8, block_bytes=128 * MIB, outside_bytes=16 * MIB, rows=8)


def traced(log: EventLog, *, refusal: str = "") -> TracedTraining:
    return TracedTraining(
        log=log, optimizers=("AdamW",), num_steps=2, num_parameters=1, dtypes=("float32",), uses_device=True,
        seconds=1.0, refusal=refusal, is_own=False,
    )  # fmt: skip


def ranks(memory_bytes: int, num_ranks: int = 2) -> AvailableMemory:
    device = Device(chip="A100", memory_bytes=memory_bytes)
    return AvailableMemory(device=device, node_bytes=512 * GIB, num_ranks=num_ranks, ranks_per_node=num_ranks)


def needs(num_ranks: int = 2) -> dict[str, int]:
    """Return the most that each way to scale takes."""
    device = Device(chip="A100", memory_bytes=80 * GIB)
    layouts = choice.layouts(log(), num_ranks, num_ranks)
    return {choice.how(layout): judge(log(), layout, device).high_bytes for layout in layouts}


def test_just_enough_memory_for_each_way() -> None:
    """With just enough for a way, it is taken, or one before it; it fits, and simpler ones are named."""
    taken = set()
    result = needs()
    assert list(result) == ["data", "fsdp", "tensor", "pipeline"]
    for how, need in result.items():
        fitted = choose(traced(log()), ranks(int(need / (1 - MARGIN)) + 1), DEFAULT, script="train.py")
        assert result[fitted.how] <= need, how
        assert ("would take" in fitted.why) is (fitted.how != "data")
        taken.add(fitted.how)
    assert {"data", "fsdp"} <= taken


def test_options_leave_out_ways() -> None:
    """An option for shared batches never leads to a split model, and one for whole gradients not to sharded weights."""
    tight = ranks(int(min(needs().values()) / (1 - MARGIN)) + 1)
    assert choose(traced(log()), tight, DEFAULT, script="train.py").how == min(needs(), key=needs().get)
    fsdp = ranks(int(needs()["fsdp"] / (1 - MARGIN)) + 1)
    assert choose(traced(log()), fsdp, ScaleOptions(draws_all=True), script="train.py").how == "fsdp"
    with pytest.raises(UsageError, match="no strategy fits: data needs least"):
        choose(traced(log()), fsdp, ScaleOptions(compress="bf16"), script="train.py")


def test_batches_of_each_rank_count() -> None:
    """With --per-device-batch each rank has all rows of the script's batch, and needs more."""
    data = ranks(int(needs()["data"] / (1 - MARGIN)) + 1)
    assert choose(traced(log()), data, DEFAULT, script="train.py").how == "data"
    large = of_model(num_blocks=8, block_bytes=128 * MIB, outside_bytes=16 * MIB, rows=8, activation_bytes=256 * MIB)
    device = data.device
    shared, own = (judge(large, layout, device) for layout in
                   (choice.layouts(large, 2, 2)[0], choice.layouts(large, 2, 2, rows=16)[0]))  # fmt: skip
    assert own.high_bytes > shared.high_bytes
    tight = ranks(int(shared.high_bytes / (1 - MARGIN)) + 1)
    assert choose(traced(large), tight, DEFAULT, script="train.py").how == "data"
    with pytest.raises(UsageError, match="FSDP needs least"):
        choose(traced(large), tight, ScaleOptions(keeps_batch=True), script="train.py")


def test_nothing_fits() -> None:
    """The error names the way that needs least, and what would fit in the script, or which command tells more."""
    with pytest.raises(UsageError, match=r"--scale auto-fit: train\.py: no strategy fits") as result:
        choose(traced(log()), ranks(MIB), DEFAULT, script="train.py")
    assert result.value.hint == "echelon fit train.py   says what to change first"
    tall = of_model(num_blocks=8, block_bytes=8 * MIB, rows=8, activation_bytes=256 * MIB)
    layout = choice.layouts(tall, 1, 1)[0].changed(checkpointing=True)
    need = judge(tall, layout, ranks(80 * GIB).device).high_bytes
    with pytest.raises(UsageError, match="one device needs least") as result:
        choose(traced(tall), ranks(int(need / (1 - MARGIN)) + 1, 1), DEFAULT, script="train.py")
    assert result.value.hint.startswith("one device + checkpointing fits, at most ")
    assert result.value.hint.endswith('run.parallelize(model, echelon.Strategy(checkpointing="full"))')


def test_way_that_a_run_refuses_is_not_taken() -> None:
    """Of a batch that ranks cannot share, only ways that split the model are left; without one nothing is started."""
    roomy = ranks(80 * GIB)
    refused = traced(log(), refusal="the rows of the batch are steps of time")
    assert choose(refused, roomy, DEFAULT, script="train.py").how in choice.MODEL_PARALLEL
    with pytest.raises(
        UsageError, match="--scale data would refuse it: the rows of the batch are steps of time"
    ) as result:
        choose(refused, roomy, ScaleOptions(compress="bf16"), script="train.py")
    assert result.value.hint == "echelon run -n 1 train.py"
    alone = choose(refused, ranks(80 * GIB, 1), DEFAULT, script="train.py")
    assert (alone.how, "mixes samples" in alone.why) == ("data", False)


@pytest.mark.parametrize(("how", "has_doubt"), [("data", True), ("fsdp", True), ("tensor", False), ("pipeline", False)])
def test_doubt_about_mixed_samples(how: str, has_doubt: bool) -> None:
    """Where ranks have parts of the batch, the reason ends in what a trace does not show, as `echelon fit` says."""
    (layout,) = [layout for layout in choice.layouts(log(), 2, 2) if choice.how(layout) == how]
    doubt = "; a trace does not show whether the model mixes samples, which run refuses"
    assert traced(log()).doubt_of(layout) == (doubt if has_doubt else "")
    assert traced(log(), refusal="of time").doubt_of(layout) == ""
    if how == "data":
        assert choose(traced(log()), ranks(80 * GIB), DEFAULT, script="train.py").why.endswith(doubt)


def run(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    (folder / "train.py").write_text(SCRIPT)
    environ = {**os.environ, "XDG_CONFIG_HOME": str(folder / "config")}
    return warm.run(["-m", "echelon", "run", *words], cwd=folder, environ=environ)


def test_real_run_takes_what_fits(tmp_path: Path) -> None:
    """A small model on two ranks: data is taken, one line says so, and the ranks train."""
    done = run(tmp_path, "-n", "2", "--run-dir", "first", "--scale", "auto-fit", "train.py", "64", "2")
    assert done.returncode == 0, done.stderr
    (line,) = [line for line in done.stderr.splitlines() if "auto-fit takes" in line]
    assert line.startswith("echelon: note: --scale auto-fit takes data: data takes at most ")
    assert "scaled over 2 ranks" in done.stderr
    plan = json.loads((tmp_path / "first" / "plan.json").read_text())
    assert plan["scale_options"]["how"] == "data"
    assert plan["scale_why"].startswith("--scale auto-fit: data takes at most ")


@pytest.mark.tier("all")
def test_model_of_this_node_needs_another_way(tmp_path: Path) -> None:
    """A model that takes two thirds of this node on each of two ranks is not copied, but split; nothing is started."""
    node = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    width, share = 4096, node // 2
    blocks = int(1.3 * share / (16 * width * width))
    done = run(tmp_path, "-n", "2", "--dry-run", "--json", "--scale", "auto-fit", "train.py", str(width), str(blocks))
    assert done.returncode == 0, done.stderr
    plan = json.loads(done.stdout)
    assert plan["scale_options"]["how"] in ("fsdp", "tensor", "pipeline")
    assert "would take" in plan["scale_why"]
    assert not (tmp_path / "echelon-runs").exists()


REFUSED = [
        ("print(1)", "train.py", "ends without a step of an optimizer of PyTorch", "a script that trains"),
        (None, "-- true", "--scale auto-fit is for a Python script", "echelon run --scale auto-fit train.py"),
        ("import torch.distributed as d\nd.init_process_group()", "train.py", "distributes itself", "--scale off"),
        ("open('missing.csv')", "train.py", "--scale auto-fit: train.py cannot be traced: FileNotFoundError", "data"),
    ]  # fmt: skip


@pytest.mark.parametrize(("text", "words", "message", "hint"), some(REFUSED, 2, first=1))
def test_refused_before_the_start(tmp_path: Path, text: str | None, words: str, message: str, hint: str) -> None:
    """One error, exit code 2, and no run directory."""
    if text is not None:
        (tmp_path / "train.py").write_text(text)
    done = warm.run(["-m", "echelon", "run", "-n", "2", "--scale", "auto-fit", *words.split()], cwd=tmp_path)
    assert done.returncode == 2, done.stderr
    assert message in done.stderr
    assert hint in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "echelon-runs").exists()
