"""Failures without progress are counted, wait longer each time, and end early at the same error twice."""

from pathlib import Path

import pytest
from tests.run.shell import Shell

from echelon.launch import failure
from echelon.launch.failure import Failure
from echelon.launch.restarts import LONG_ATTEMPT_SECONDS, UNKNOWN_STEP, Restarts
from echelon.launch.run_directory import RunDirectory

TRACEBACK = """Traceback (most recent call last):
  File "/home/me/train.py", line {line}, in <module>
    model.load_state_dict(snapshot)
RuntimeError: PytorchStreamReader failed reading {what}
"""


def fault(before: str = "", line: int = 7, what: str = "zip archive") -> Failure:
    return Failure(cause=failure.USER_ERROR, rank=0, tail=before + TRACEBACK.format(line=line, what=what))


def killed() -> Failure:
    return Failure(cause=failure.KILLED, rank=0, tail="epoch 1\n")


def begun(most: int, steps: list[int] | None = None) -> Restarts:
    restarts = Restarts(most, (lambda: steps[-1]) if steps else lambda: UNKNOWN_STEP)
    restarts.note_start()
    return restarts


def test_each_restart_waits_longer() -> None:
    """At once, then 1 s, then twice as long each time, and never more than a minute."""
    restarts = begun(10)
    waits = [restarts.wait_seconds for _ in range(10) if restarts.take(killed())]
    assert waits == [0, 1, 2, 4, 8, 16, 32, 60, 60, 60]
    assert not restarts.take(killed())
    assert restarts.count == 10
    assert restarts.why_not == ""


def test_a_long_attempt_begins_a_new_series() -> None:
    """What fails after a long time is tried again at once, but counts."""
    restarts = begun(3)
    assert [restarts.take(killed()) for _ in range(2)] == [True, True]
    assert restarts.wait_seconds == 1
    assert restarts.take(killed(), lasted_seconds=LONG_ATTEMPT_SECONDS)
    assert restarts.wait_seconds == 0
    assert not restarts.take(killed())


def test_progress_begins_the_count_again() -> None:
    """A published checkpoint that is newer than the attempt's begin frees the restarts that were used."""
    steps = [100]
    restarts = begun(1, steps)
    for step in (200, 300, 400):
        steps.append(step)
        assert restarts.take(fault())
        assert restarts.wait_seconds == 0
        restarts.note_start()
    assert not restarts.take(fault())
    assert restarts.count == 3


@pytest.mark.parametrize("steps", [None, [100]])
def test_the_same_error_twice(steps: list[int] | None) -> None:
    """The same traceback twice in a row ends the run; the line names the exception and its place."""
    restarts = begun(5, steps)
    assert restarts.take(fault("echelon: first step: equals that of one device (0.1 s)\n"))
    assert not restarts.take(fault("echelon: first step: equals that of one device (0.3 s)\n"))
    assert restarts.why_not.startswith(
        "the same error twice: RuntimeError: PytorchStreamReader failed reading zip archive (train.py:7); "
    )


def test_addresses_do_not_make_an_error_another() -> None:
    """The address of an object differs between attempts."""
    restarts = begun(5)
    assert restarts.take(fault(what="<Reader at 0x7f00>"))
    assert not restarts.take(fault(what="<Reader at 0x7e10>"))


@pytest.mark.parametrize(
    "other", [fault(line=8), fault(what="data"), fault("epoch 3\n"), killed()], ids=["line", "error", "output", "cause"]
)
def test_another_error_is_tried_again(other: Failure) -> None:
    """Another place, another exception or another output: the attempt may have come further."""
    restarts = begun(5)
    assert restarts.take(fault("epoch 2\n"))
    assert restarts.take(other)
    assert restarts.why_not == ""


def test_only_whole_checkpoints_count(tmp_path: Path) -> None:
    """A folder without a manifest is no published checkpoint; other names are none."""
    with (tmp_path / "events").open("wb") as events:
        directory = RunDirectory(str(tmp_path), events)
        assert directory.newest_step() == UNKNOWN_STEP
        for name in ("step-9", "step-10", "step-x", "latest"):
            (tmp_path / "checkpoints" / name).mkdir(parents=True)
        assert directory.newest_step() == UNKNOWN_STEP
        (tmp_path / "checkpoints" / "step-9" / "manifest.json").touch()
        assert directory.newest_step() == 9
        (tmp_path / "checkpoints" / "step-10" / "manifest.json").touch()
        assert directory.newest_step() == 10


LASTING = """
import os
step = int(os.environ["TORCHELASTIC_RESTART_COUNT"]) + 1
if os.path.exists("progress"):
    os.makedirs(os.environ["ECHELON_RUN_DIR"] + f"/checkpoints/step-{step}")
    open(os.environ["ECHELON_RUN_DIR"] + f"/checkpoints/step-{step}/manifest.json", "w").close()
if step <= 4:
    raise ValueError("the snapshot is torn")
"""


def test_run_stops_at_the_same_error(shell: Shell) -> None:
    """A lasting error does not use up the restarts, and the exit code is that of the error."""
    shell.script(LASTING)
    done = shell.fork("--max-restarts", "5", "train.py")
    assert done.exit_code == 1
    assert done.said.count("; starting all ranks again\n") == 1
    assert "echelon: the same error twice: ValueError: the snapshot is torn (train.py:8); " in done.said
    assert len(shell.files("echelon-runs/*/logs/attempt-*")) == 2


def test_run_with_progress_goes_on(shell: Shell) -> None:
    """With a newer checkpoint in each attempt, more attempts fail than --max-restarts says."""
    shell.script(LASTING)
    (shell.folder / "progress").touch()
    done = shell.fork("--max-restarts", "1", "train.py")
    assert done.exit_code == 0, done.said
    assert len(shell.files("echelon-runs/*/logs/attempt-*")) == 5


def test_signal_while_waiting(shell: Shell) -> None:
    """A time limit that passes between two attempts ends the run."""
    shell.script("import os, sys; print(os.environ['TORCHELASTIC_RESTART_COUNT']); sys.exit(3)")
    done = shell.fork("--max-restarts", "9", "--timeout", "10", "train.py")
    assert done.exit_code == 124
    assert "; starting all ranks again in 1 s\n" in done.said
