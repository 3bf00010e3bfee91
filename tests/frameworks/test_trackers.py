"""--track with MLflow and W&B: a run on two ranks, read back by MLflow's client, and by W&B's own records."""

import json
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests import warm
from tests.monitor.test_track import BY_STEP, TRAINING, Sampled

from echelon.monitor.track.follow import Follower
from echelon.spec import Tracker

pytestmark = pytest.mark.framework("mlflow", "wandb")
BLOCK_BYTES, HEAD_BYTES, FILE_HEAD_BYTES = 32768, 7, 7
"""W&B's file is a log as LevelDB has it, after a head of its own."""
FULL, LAST = 1, 4


def records(path: Path) -> Iterator[Any]:
    """Yield the records of W&B's file."""
    from wandb.proto.wandb_internal_pb2 import Record

    content, place, part = path.read_bytes(), FILE_HEAD_BYTES, b""
    assert content.startswith(b":W&B")
    while place + HEAD_BYTES <= len(content):
        if BLOCK_BYTES - place % BLOCK_BYTES < HEAD_BYTES:
            place += BLOCK_BYTES - place % BLOCK_BYTES
            continue
        length, kind = struct.unpack("<HB", content[place + 4 : place + HEAD_BYTES])
        part += content[place + HEAD_BYTES : place + HEAD_BYTES + length]
        place += HEAD_BYTES + length
        if kind in (FULL, LAST):
            yield Record.FromString(part)
            part = b""


def offline(folder: Path) -> tuple[dict[str, Any], list[dict[str, Any]], dict[str, Any]]:
    """Return the configuration, the history and the summary of the one run of a folder, in all its parts."""
    known: dict[str, Any] = {}
    history: list[dict[str, Any]] = []
    summed: dict[str, Any] = {}
    names = set()
    for path in sorted(folder.glob("wandb/offline-run-*/*.wandb")):
        names.add(path.name)
        for record in records(path):
            known |= {item.key: json.loads(item.value_json) for item in record.run.config.update if item.key}
            rows = {item.key or item.nested_key[0]: json.loads(item.value_json) for item in record.history.item}
            history += [{**rows, "step": record.history.step.num}] if rows else []
            summed |= {item.key: json.loads(item.value_json) for item in record.summary.update if item.key}
    assert len(names) == 1
    return known, history, summed


def test_run_with_mlflow_and_wandb(tmp_path: Path) -> None:
    """Both have each step once, the arguments, and what the run used; MLflow's run has finished."""
    from mlflow import MlflowClient

    (tmp_path / "train.py").write_text(TRAINING)
    words = ["run", "--run-dir", "run", "--no-pool", "-n", "2", "--track", "mlflow", "--track", "wandb"]
    done = warm.run(["-m", "echelon", *words, "train.py", "--lr", "0.1"], cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    folder = tmp_path / "run" / "mlflow"
    view = f"MLFLOW_ALLOW_FILE_STORE=true mlflow ui --backend-store-uri file://{folder}\n"
    assert f" points up to step 24 · {view}" in done.stderr
    configured, history, summed = offline(tmp_path / "run")
    assert (configured["lr"], configured["echelon.ranks"]) == ("0.1", "2")
    assert history[-1]["step"] == 24
    assert set(BY_STEP) <= {name for row in history for name in row}
    assert summed["run/seconds"] > 0
    client = MlflowClient(tracking_uri=f"file://{folder}")
    (run,) = client.search_runs([each.experiment_id for each in client.search_experiments()])
    assert (run.info.status, run.data.params["lr"], run.data.params["echelon.ranks"]) == ("FINISHED", "0.1", "2")
    losses = client.get_metric_history(run.info.run_id, "loss")
    assert [(each.step, each.value) for each in losses] == [(row["step"], row["loss"]) for row in history]
    assert run.data.metrics["run/seconds"] == summed["run/seconds"]


@pytest.fixture(autouse=True)
def with_folders(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let MLflow read a folder."""
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")


def test_run_that_goes_on(tmp_path: Path) -> None:
    """A run that is written in two parts, of which the second one repeats steps, is one run with each step once."""
    from mlflow import MlflowClient

    run = Sampled(tmp_path / "run")
    run.attempt(0, range(1, 6))
    trackers = [Tracker(name="mlflow", where=str(tmp_path / "store")), Tracker(name="wandb", where=str(tmp_path))]
    Follower(str(run.folder), trackers, print).end(None)
    run.event("restart", 0.0, cause="error in the script", rank=0)
    run.attempt(1, range(4, 9), continued=3)
    run.event("end", 0.0, exit_code=1)
    for _ in range(2):
        Follower(str(run.folder), trackers, print).end(1)
    client = MlflowClient(tracking_uri=f"file://{tmp_path}/store")
    (written,) = client.search_runs([each.experiment_id for each in client.search_experiments()])
    steps = [each.step for each in client.get_metric_history(written.info.run_id, "loss")]
    assert steps == [row["step"] for row in offline(tmp_path)[1]] == list(range(1, 9))
    assert (written.info.status, written.info.run_name) == ("FAILED", "run")
