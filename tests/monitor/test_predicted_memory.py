"""The report compares a run with what was predicted for it, keeps the ratio once, and fit says how far to trust."""

import json
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from tests import warm

from echelon.estimate import remembered
from echelon.estimate.layout import Layout
from echelon.estimate.remembered import MemoryPrediction
from echelon.machines import kept_rows

MIB = 1 << 20
SCRIPT = """
import torch

model = torch.nn.Sequential(*[torch.nn.Linear(64, 64) for _ in range(2)])
optimizer = torch.optim.AdamW(model.parameters())
data = torch.utils.data.TensorDataset(torch.randn(64, 64))
for (rows,) in torch.utils.data.DataLoader(data, batch_size=16):
    optimizer.zero_grad()
    model(rows).square().mean().backward()
    optimizer.step()
"""


def environ(folder: Path) -> dict[str, str]:
    return {**os.environ, "XDG_CONFIG_HOME": str(folder / "config")}


def echelon(folder: Path, *words: str) -> str:
    done = warm.run(["-m", "echelon", *words], cwd=folder, environ=environ(folder), timeout=240)
    assert done.returncode == 0, done.stderr
    return done.stdout


def row(script: Path, **changes: object) -> dict[str, Any]:
    """Return the row of a prediction for a script on two A100."""
    training = remembered.training_of(str(script), ("--epochs", "3"), "data", 2, has_own_batches=False)
    assert training is not None
    prediction = MemoryPrediction(
        training=training, rows=16, torch="2.13.0", chip="A100", low_bytes=900 * MIB, high_bytes=4000 * MIB,
        allocated_bytes=100 * MIB, reserved_bytes=200 * MIB, time=1.0,
    )  # fmt: skip
    return {**prediction.as_row(), **changes}


def run_directory(folder: Path, script: Path, measures: Mapping[str, object], *, began: float = 100.0) -> Path:
    """Write the directory of a run of a script on two ranks."""
    path = folder / "run"
    path.mkdir()
    plan = {
        "format": 1, "run_id": "run", "argv": ["python", script.name, "--epochs", "3"], "folder": str(script.parent),
        "scale_options": {"how": "data"}, "num_nodes": 1, "ranks_per_node": 2,
    }  # fmt: skip
    (path / "plan.json").write_text(json.dumps(plan))
    events = [
        {"time": began, "event": "agent", "agent_index": 0, "node": "n1", "devices": 2},
        {"time": began, "event": "attempt", "number": 0, "ranks": 2},
        *({"time": began + 1, "event": "started", "rank": rank, "attempt": 0, "node": "n1"} for rank in range(2)),
    ]
    (path / "events.jsonl").write_text("".join(json.dumps(event) + "\n" for event in events))
    sample = {
        "time": began + 10,
        "attempt": 0,
        "ranks": 2,
        "steps": 9,
        "measures": {"step_seconds": [9.0, 9.0], **measures},
    }
    (path / "samples.jsonl").write_text('{"format": 1}\n' + json.dumps(sample) + "\n")
    (path / "report.json").write_text(json.dumps({"format": 1, "exit_code": 0, "seconds": 12.0}))
    return path


MEASURED = {"peak_allocated_bytes": [90 * MIB, 101 * MIB], "peak_reserved_bytes": [180 * MIB, 210 * MIB]}


def predicted(folder: Path, path: Path) -> dict[str, Any] | None:
    (data,) = json.loads(echelon(folder, "report", "--json", str(path)))["runs"]
    result: dict[str, Any] | None = data.get("predicted")
    return result


def test_measured_over_predicted_is_kept_once(tmp_path: Path) -> None:
    """The fullest rank counts; a second report of the same run adds nothing."""
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    assert kept_rows.add(MemoryPrediction.FILE, [row(script)], environ(tmp_path))
    path = run_directory(tmp_path, script, MEASURED)
    result = predicted(tmp_path, path)
    assert result is not None
    assert (result["allocated_ratio"], result["reserved_ratio"]) == (1.01, 1.05)
    text = echelon(tmp_path, "report", str(path))
    assert "predicted 900 MiB to 3.9 GiB on A100, 200 MiB of it reserved by PyTorch" in text
    assert "reserved 1.05 of that" in text
    kept = kept_rows.read(MemoryPrediction.RATIOS, environ(tmp_path))
    assert kept == [{"run": "run", "chip": "A100", "torch": "2.13.0", "allocated": 1.01, "reserved": 1.05}]


@pytest.mark.parametrize(
    "change",
    [{"how": "fsdp"}, {"num_ranks": 4}, {"arguments": []}, {"digest": "0"}, {"time": 100.5}, {"reserved_bytes": "x"}],
    ids=lambda change: next(iter(change)),
)
def test_prediction_of_another_training_is_not_compared(tmp_path: Path, change: Mapping[str, object]) -> None:
    """Another strategy, number of ranks, arguments or text, a prediction after the run's begin, a broken row."""
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    kept_rows.add(MemoryPrediction.FILE, [row(script, **change)], environ(tmp_path))
    assert predicted(tmp_path, run_directory(tmp_path, script, MEASURED)) is None
    assert kept_rows.read(MemoryPrediction.RATIOS, environ(tmp_path)) == []


def test_newest_prediction_counts(tmp_path: Path) -> None:
    """Of two predictions for a training, the later one is compared."""
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    kept_rows.add(MemoryPrediction.FILE, [row(script), row(script, reserved_bytes=210 * MIB)], environ(tmp_path))
    result = predicted(tmp_path, run_directory(tmp_path, script, MEASURED))
    assert result is not None
    assert result["reserved_ratio"] == 1.0


def test_edited_script_is_not_compared(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    kept_rows.add(MemoryPrediction.FILE, [row(script)], environ(tmp_path))
    script.write_text(SCRIPT.replace("64", "65"))
    assert predicted(tmp_path, run_directory(tmp_path, script, MEASURED)) is None


def test_rows_are_bounded_and_broken_files_are_none(tmp_path: Path) -> None:
    """The oldest rows go; a file that echelon did not write has no rows, and is replaced."""
    variables = environ(tmp_path)
    for number in range(3):
        kept_rows.add("ratios", [{"run": f"{number}-{each}"} for each in range(300)], variables)
    rows = kept_rows.read("ratios", variables)
    assert (len(rows), rows[-1], rows[0]) == (kept_rows.MOST_ROWS, {"run": "2-299"}, {"run": "1-100"})
    path = Path(kept_rows.path("ratios", variables))
    assert [each.name for each in path.parent.iterdir()] == ["ratios.json"], "nothing is left beside"
    for text in ("", "[]", '{"format": 2, "rows": [{}]}', '{"format": 1, "rows": 3}', "\x00"):
        path.write_text(text)
        assert kept_rows.read("ratios", variables) == []
    assert kept_rows.add("ratios", [{"run": "a"}], variables)
    assert kept_rows.read("ratios", variables) == [{"run": "a"}]


def test_home_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "config").write_text("a file, where a folder should be")
    assert not kept_rows.add("ratios", [{"run": "a"}], environ(tmp_path))


def test_trust_is_of_one_chip_and_version() -> None:
    """Ratios of other chips and versions do not count; a build of the same version does."""
    rows = [
        {"chip": "A100", "torch": "2.13.0", "reserved": 0.97},
        {"chip": "A100", "torch": "2.13.0", "reserved": 1.04},
        {"chip": "H100", "torch": "2.13.0", "reserved": 3.0},
        {"chip": "A100", "torch": "2.12.0", "reserved": 2.0},
        {"chip": "A100", "torch": "2.13.0", "reserved": "many"},
    ]
    words = remembered.trust_memory(rows, chip="A100", torch="2.13.0+cpu")
    assert words == "on this kind of device (A100, PyTorch 2.13.0) 2 runs took 0.97 to 1.04 of what was predicted"
    assert remembered.trust_memory(rows, chip="MI250X", torch="2.13.0") == ""


def test_only_ways_that_a_plan_tells_are_predicted() -> None:
    ways = [
        Layout(),
        Layout(replicate=2),
        Layout(shard=2),
        Layout(checkpointing=True),
        Layout(shard=2, reshard="never"),
    ]
    assert [remembered.how(layout) for layout in ways] == ["one", "data", "fsdp", "", ""]
    assert remembered.how(Layout(precision="bf16")) == ""


@pytest.mark.tier("all")
def test_fit_predicts_and_says_how_far_to_trust_it(tmp_path: Path) -> None:
    """The prediction of `echelon fit` is found by a run; the next `echelon fit` says what the run took of it."""
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    words = ("fit", "--device", "a100-40", "--gpus", "2", "train.py", "--epochs", "3")
    assert "of what was predicted" not in echelon(tmp_path, *words)
    path = run_directory(tmp_path, script, MEASURED, began=time.time() + 1)
    result = predicted(tmp_path, path)
    assert result is not None
    assert result["reserved_ratio"] == round(210 * MIB / result["reserved_bytes"], 4)
    last = echelon(tmp_path, *words).splitlines()[-1]
    assert last.startswith("on this kind of device (A100, PyTorch ")
    assert last.endswith(f") 1 run took {result['reserved_ratio']:.2f} of what was predicted")


def test_real_run_on_a_cpu(tmp_path: Path) -> None:
    """--scale auto-fit predicts; on a CPU nothing is compared or kept, and the report says why."""
    (tmp_path / "train.py").write_text(SCRIPT)
    echelon(tmp_path, "run", "-n", "2", "--run-dir", "first", "--scale", "auto-fit", "train.py")
    text = echelon(tmp_path, "report", "first")
    assert "on CPU; nothing is compared, because the allocator of a CPU is not measured" in text
    assert kept_rows.read(MemoryPrediction.RATIOS, environ(tmp_path)) == []
