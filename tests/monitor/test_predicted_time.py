"""The report compares the time of a step with what `echelon fit --scaling` estimated, and fit says how far off."""

import json
from pathlib import Path
from typing import Any

import pytest
from tests.monitor.test_predicted_memory import echelon, environ
from tests.trials.test_forecast import generated, law

from echelon.estimate.remembered import TimePrediction
from echelon.machines import kept_rows


def run(folder: Path, ranks: int, seconds: float, **changes: Any) -> str:
    """Write the directory of a run of train.py, which is in the folder, 8 ranks on a node."""
    path = generated(folder, ranks, seconds, nodes=ranks // 8)
    plan = json.loads(Path(path, "plan.json").read_text())
    Path(path, "plan.json").write_text(json.dumps({**plan, "folder": str(folder), "run_id": f"of {ranks}", **changes}))
    return path


@pytest.fixture
def estimated(tmp_path: Path) -> Path:
    """Return a folder in which 64 to 512 ranks were estimated from 16 and 32."""
    (tmp_path / "train.py").write_text("# trains\n")
    runs = [run(tmp_path, ranks, law(ranks)) for ranks in (16, 32)]
    assert "estimated before" not in echelon(tmp_path, "fit", "--scaling", "--from", *runs)
    rows = kept_rows.read(TimePrediction.FILE, environ(tmp_path))
    assert [row["num_ranks"] for row in rows] == [64, 128, 256, 512]
    for row in rows:  # a generated run began in 1970
        row["time"] = 0.0
    path = kept_rows.path(TimePrediction.FILE, environ(tmp_path))
    Path(path).write_text(json.dumps({"format": kept_rows.FORMAT, "rows": rows}))
    return tmp_path


def compared(folder: Path, path: str) -> "dict[str, Any] | None":
    (data,) = json.loads(echelon(folder, "report", "--json", path))["runs"]
    result: dict[str, Any] | None = data.get("predicted_step_seconds")
    return result


def test_measured_time_is_compared_and_kept_once(estimated: Path) -> None:
    """A run that took a tenth longer says so, in the report and to whoever estimates next."""
    path = run(estimated, 64, 1.1 * law(64))
    for _ in range(2):
        result = compared(estimated, path)
        assert result is not None
        assert result["ratio"] == pytest.approx(1.1, abs=0.002)
        assert result["measured"] == pytest.approx(1.1 * law(64), rel=0.001)
        assert result["value"] == pytest.approx(law(64), rel=0.001)
        assert result["is_inside"] == (result["least"] <= result["measured"] <= result["most"])
    assert "most likely 75 ms; the run took 82.5 ms, 1.10 of that" in echelon(estimated, "report", path)
    (row,) = kept_rows.read(TimePrediction.RATIOS, environ(estimated))
    assert (row["run"], row["machine"], row["step_seconds"]) == ("of 64", "lumi", 1.1)
    again = echelon(estimated, "fit", "--scaling", "--from", *(str(estimated / f"{ranks}-ranks") for ranks in (16, 32)))
    assert "1 run on lumi that was estimated before took 1.10 of the estimated time" in again


@pytest.mark.parametrize(
    "changes",
    [
        {"argv": ["python3", "train.py"]},
        {"scale_options": {"how": "fsdp"}},
        {"scale_options": {"how": "data", "keeps_batch": True}},
    ],
    ids=["arguments", "strategy", "batch"],
)
def test_other_training_is_not_compared(estimated: Path, changes: dict[str, Any]) -> None:
    assert compared(estimated, run(estimated, 64, law(64), **changes)) is None


def test_edited_script_and_other_sizes_are_not_compared(estimated: Path) -> None:
    assert compared(estimated, run(estimated, 24, law(24))) is None
    path = run(estimated, 64, law(64))
    assert compared(estimated, path) is not None
    (estimated / "train.py").write_text("# trains in another way\n")
    assert compared(estimated, path) is None


def test_broken_rows_are_ignored(estimated: Path) -> None:
    """A file that another program has changed loses what it has changed, and nothing else."""
    path = run(estimated, 64, law(64))
    rows = kept_rows.read(TimePrediction.FILE, environ(estimated))
    broken = [
        {**rows[0], "step_seconds": value} for value in (None, 3, {"value": "x"}, {"value": 1, "least": 2, "most": 0})
    ]
    assert kept_rows.add(TimePrediction.FILE, [*broken, {**rows[0], "time": "late"}], environ(estimated))
    result = compared(estimated, path)
    assert result is not None
    assert result["value"] == pytest.approx(law(64), rel=0.001)
