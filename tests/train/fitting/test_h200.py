"""A trace has the bytes that an H200 measured: benchmarks/gpu/peaks.jsonl, which no constant here was fitted to."""

import json
from pathlib import Path
from typing import Any

import pytest
from tests.tiers import some
from tests.train.fitting import traces

from echelon.estimate import log as logs
from echelon.estimate.devices import CONTEXT, CONVOLUTION, Device, overhead
from echelon.estimate.layout import Layout
from echelon.estimate.verdict import judge, largest_batch

PROGRAMS = traces.ROOT / "benchmarks" / "gpu"
MEASURED = [json.loads(line) for line in (PROGRAMS / "peaks.jsonl").read_text("utf-8").splitlines()]
HERE = ("mlp", "gpt", "lstm", "cnn")
"""Models of PyTorch's own layers; the others need transformers or torchvision."""
GIB = 1 << 30
WORKSPACES = 2 * (32 << 20) + (1 << 20)
"""What two handles of cuBLAS keep on Hopper, which PyTorch's allocator counts."""
PHASES = {
    "forward": "forward", "backward": "backward", "backward peak": "backward peak", "optimizer": "step",
    "optimizer peak": "step peak",
}  # fmt: skip
"""Phases of a trace by those of the program. The peak of "forward" is left out: the program frees gradients before."""
ROWS = [row for row in MEASURED if row.get("model") in HERE and not row["checkpointing"]]


def name_of(row: dict[str, Any]) -> str:
    return f"{row['model']} {row['batch']} {row['precision']} {row['optimizer']}"


OF_TWO_OPTIMIZERS = [row for row in ROWS if row["optimizer"] in ("adamw", "sgd")]
CHOSEN = {name_of(row): row for row in some(OF_TWO_OPTIMIZERS, 8, first=3)}


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    jobs = {}
    for name, row in CHOSEN.items():
        words = [row["model"]]
        for option in ("batch", "precision", "optimizer"):
            words += [f"--{option}", str(row[option])]
        jobs[name] = {"trace": traces.order(PROGRAMS / "programs" / "peak.py", arguments=tuple(words))}
    return traces.run(tmp_path_factory.mktemp("h200"), jobs)


@pytest.mark.parametrize("name", CHOSEN)
def test_allocated_bytes(results: dict[str, dict[str, Any]], name: str) -> None:
    """The allocated bytes of each phase are within 3 %; cuDNN's convolutions also take workspaces inside of a phase."""
    result, real = traces.course(results[name], rounded=traces.ROUNDED), CHOSEN[name]["bytes"]
    for phase, measured in PHASES.items():
        if not (phase.endswith("peak") and name.startswith("cnn")):
            assert result[phase] + WORKSPACES == pytest.approx(real[measured], rel=0.03), phase


@pytest.mark.parametrize("name", CHOSEN)
def test_reserved_bytes(results: dict[str, dict[str, Any]], name: str) -> None:
    """The reserved bytes and the least context are within the interval of the verdict."""
    device = Device(chip="H200", memory_bytes=141 * GIB)
    verdict, context = judge(logs.read(results[name]), Layout(), device), overhead(device, CONTEXT)
    used = CHOSEN[name]["bytes"]["reserved"] + context.low_bytes
    assert verdict.low_bytes <= used <= verdict.high_bytes


@pytest.mark.parametrize("name", [name for name in CHOSEN if name.startswith("cnn")])
def test_workspaces_of_convolutions(results: dict[str, dict[str, Any]], name: str) -> None:
    """What PyTorch reserved lies between the replay without workspaces and that with the largest ones."""
    verdict = judge(logs.read(results[name]), Layout(), Device(chip="H200", memory_bytes=141 * GIB))
    (work,) = (part.high_bytes for part in verdict.overheads if part.kind == CONVOLUTION)
    least = verdict.memory.reserved_bytes
    assert least < CHOSEN[name]["bytes"]["reserved"] <= least + work


def test_largest_batch(results: dict[str, dict[str, Any]]) -> None:
    """The largest batch that fitted into 16 GiB is between the sure and the possible one."""
    (row,) = (training for training in MEASURED if training.get("training") == "gpt")
    log = logs.read(results["gpt 8 fp32 adamw"])
    result = largest_batch(log, Layout(), Device(chip="H200", memory_bytes=row["limit_gib"] * GIB))
    assert result.surely <= row["fits"] <= result.perhaps


def test_program_is_there() -> None:
    """The rows name models of the program."""
    assert Path(PROGRAMS / "programs" / "peak.py").exists()
    assert len(OF_TWO_OPTIMIZERS) >= 12
