"""The options of checkpoints: what is accepted, and what is refused before anything starts."""

import fcntl
from pathlib import Path

import pytest
from tests.checkpoint.killing import write

from echelon.cli import run_options
from echelon.errors import UsageError
from echelon.jobs import settings
from echelon.orders.checkpoint import CheckpointOrder
from echelon.script.reading import of_job
from echelon.spec import Command, Job


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a run directory with the checkpoint of step 7."""
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "echelon-runs" / "first"
    path.mkdir(parents=True)
    (path / "plan.json").write_text("{}")
    (path / "events.jsonl").touch()
    write(str(path / "checkpoints"), 7)
    return path


def refused(**values: str) -> UsageError:
    with pytest.raises(UsageError) as caught:
        run_options.order(values)
    return caught.value


def test_resume_continues_in_the_folder_of_the_earlier_run(run: Path) -> None:
    order = run_options.order({"checkpoint_every": "2h", "resume": str(run)})
    assert order is not None
    assert (order.folder, order.seconds, order.resumes) == (str(run / "checkpoints"), 7200.0, True)


def test_run_that_still_works_is_not_resumed(run: Path) -> None:
    """Its supervisor holds the lock of its events."""
    with (run / "events.jsonl").open("rb") as events:
        fcntl.flock(events, fcntl.LOCK_EX)
        error = refused(checkpoint_every="5steps", resume=str(run))
    assert "this run still works, and two runs would write the same checkpoints" in error.message
    assert "wait for its end" in str(error.hint)
    assert run_options.order({"checkpoint_every": "5steps", "resume": str(run)}) is not None


def test_run_without_a_checkpoint_is_not_resumed(run: Path) -> None:
    manifest = next((run / "checkpoints").glob("step-*/manifest.json"))
    manifest.unlink()
    assert "has no whole checkpoint" in refused(checkpoint_every="5steps", resume=str(run)).message


def test_resume_without_an_interval_shows_the_whole_command(run: Path) -> None:
    error = refused(resume=str(run))
    assert error.hint == f"echelon run --checkpoint-every 10m --resume {run} …"


@pytest.mark.parametrize(
    "values",
    [{"scale": "own.py:Mine"}, {"sync_every": "8"}, {"compress": "bf16"}],
)
def test_training_that_is_not_saved_is_refused_at_the_start(values: "dict[str, str]") -> None:
    error = refused(checkpoint_every="5steps", **values)
    (name, value), *_ = values.items()
    assert error.message.endswith(f"cannot save a training with --{name.replace('_', '-')} {value}")


@pytest.mark.parametrize("scale", ["auto", "data", "fsdp", "tensor", "pipeline", "context"])
def test_each_way_to_scale_is_saved(scale: str) -> None:
    assert run_options.order({"checkpoint_every": "5steps", "scale": scale}) is not None


@pytest.mark.parametrize("text", ["", "10", "0steps", "0m", "-5m", "1e3s", "m", "5 fortnights", "1000000000000m"])
def test_interval_that_is_none(text: str) -> None:
    assert f"--checkpoint-every {text or repr('')}: give" in refused(checkpoint_every=text).message


@pytest.mark.parametrize("text", ["", "0", "-1", "many", "12345678"])
def test_number_of_checkpoints_that_is_none(text: str) -> None:
    values = {"checkpoint_every": "10m", "keep_checkpoints": text}
    assert "give a number of checkpoints from 1 on" in refused(**values).message


def test_files_that_were_edited_since_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run that is continued names them; a run that begins only keeps their hashes."""
    monkeypatch.chdir(tmp_path)
    script = tmp_path / "train.py"
    script.write_text("import model\n")
    (tmp_path / "model.py").write_text("")
    folder = tmp_path / "run" / "checkpoints"
    folder.mkdir(parents=True)
    said: list[str] = []
    for text, resumes in (("import model\n", False), ("import model\n", True), ("import model\nx = 1\n", True)):
        script.write_text(text)
        job = Job(
            command=Command(kind="script", target="train.py"),
            checkpoints=CheckpointOrder(str(folder), steps=5, resumes=resumes),
        )
        settings.note_edits(job, of_job(job), str(folder), str(tmp_path), said.append)
    assert len(said) == 1
    assert said[0].startswith("note: train.py was edited since the run that is continued")
