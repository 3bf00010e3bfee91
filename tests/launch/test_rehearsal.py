"""The parts of a rehearsal that start nothing: the scratch copy, the drawn faults, and the verdict."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from echelon.errors import UsageError
from echelon.orders.rehearsal import DROP_NODE, FILL_DISK, KILL_RANK, KINDS, SIGNAL, TEAR_CHECKPOINT, Fault
from echelon.trials import rehearsal_verdict, rehearse, scratch


def test_copy_has_small_files_and_links_to_large_ones(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scratch, "LARGE_BYTES", 100)
    monkeypatch.setattr(scratch, "MANY_FILES", 5)
    source = tmp_path / "mine"
    for name, size in {
        "train.py": 10, "data/large.bin": 200, "data/small.bin": 5, ".git/config": 5, "env/pyvenv.cfg": 5,
        "env/lib.py": 5, "echelon-runs/x/plan.json": 5, ".echelon-rehearsal-1/copy/train.py": 5,
        **{f"images/{number}.png": 1 for number in range(6)},
    }.items():  # fmt: skip
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        (source / name).write_bytes(b"x" * size)
    (tmp_path / "outside").mkdir()
    (source / "elsewhere").symlink_to(tmp_path / "outside")
    (source / "alias.py").symlink_to("train.py")
    copy = tmp_path / "copy"
    scratch.look(str(source)).copy_to(str(copy))
    files = {str(path.relative_to(copy)) for path in copy.rglob("*")}
    assert files >= {"train.py", "alias.py", "data/large.bin", "data/small.bin", "images", "elsewhere"}
    assert not any(name.startswith((".git", "env", "echelon-runs", ".echelon")) for name in files)
    linked = {name for name in files if (copy / name).is_symlink()}
    assert linked == {"data/large.bin", "images", "elsewhere"}
    assert (copy / "data" / "large.bin").resolve() == source / "data" / "large.bin"


@pytest.mark.parametrize("kind", KINDS)
def test_fault_is_drawn_where_the_training_can_go_on(kind: str) -> None:
    """It comes after a checkpoint that it can go back to, and before the end; a seed draws the same fault again."""
    drawn = set()
    for seed in range(200):
        fault = rehearse.draw(kind, seed, num_ranks=4, num_steps=20, step_seconds=0.01)
        assert fault == rehearse.draw(kind, seed, num_ranks=4, num_steps=20, step_seconds=0.01)
        least = {SIGNAL: 1, TEAR_CHECKPOINT: 11}.get(kind, 6)
        assert least <= fault.step <= (10 if kind == SIGNAL else 19)
        assert fault.step <= 17 or not fault.delay
        assert 0 <= fault.rank < 4
        assert 0 <= fault.delay <= 0.03
        drawn.add((fault.rank, fault.step))
    assert len({rank for rank, _ in drawn}) == 4
    assert len({step for _, step in drawn}) >= 9


def test_disk_is_filled_before_a_save() -> None:
    """Of 23 steps, the last save is after step 20."""
    steps = {rehearse.draw(FILL_DISK, seed, num_ranks=2, num_steps=23, step_seconds=0.1).step for seed in range(200)}
    assert steps == set(range(6, 20))


def test_copies_are_of_the_folder_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The user may edit a file during a rehearsal; a linked file that has changed is found."""
    monkeypatch.setattr(scratch, "LARGE_BYTES", 10)
    source = tmp_path / "mine"
    source.mkdir()
    (source / "train.py").write_text("old")
    (source / "large.bin").write_text("x" * 20)
    contents = scratch.look(str(source)).kept_in(str(tmp_path / "kept"))
    before = contents.state_of_linked()
    (source / "train.py").write_text("new")
    contents.copy_to(str(tmp_path / "copy"))
    assert (tmp_path / "copy" / "train.py").read_text() == "old"
    assert (tmp_path / "copy" / "large.bin").resolve() == source / "large.bin"
    assert contents.state_of_linked() == before
    (source / "large.bin").write_text("y" * 21)
    assert contents.state_of_linked() != before


def test_file_that_vanishes_is_named(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "gone.pt").touch()
    contents = scratch.look(str(tmp_path / "mine"))
    (tmp_path / "mine" / "gone.pt").unlink()
    with pytest.raises(UsageError, match=r"gone\.pt cannot be copied: No such file"):
        contents.copy_to(str(tmp_path / "copy"))


def records(*steps: "tuple[int, float, int]", end: "dict[str, Any] | None" = None) -> rehearsal_verdict.Records:
    lines = [{"step": step, "time": when, "pid": pid} for step, when, pid in steps]
    told = {"is_same": True, "difference": 0.0, "weights": 0.0, "tensor": "", "lacks": "", **(end or {})}
    return rehearsal_verdict.Records(lines, {"struck_at": 3, "time": 3.2}, told)


def run_directory(folder: Path, *events: "dict[str, Any]") -> str:
    (folder / "events.jsonl").write_text("".join(json.dumps(event) + "\n" for event in events))
    (folder / "report.json").write_text('{"cause": "time limit", "detail": "--timeout 3 s has passed"}')
    return os.fspath(folder)


RESTART = {"event": "restart", "cause": "killed by a signal"}
STEPS = ((1, 1.0, 7), (2, 2.0, 7), (3, 3.0, 7), (2, 4.0, 8), (3, 5.0, 8), (4, 6.0, 8))


def judged(
    folder: Path, found: rehearsal_verdict.Records, *, exit_code: int = 0, bound: float = 1e-6
) -> rehearsal_verdict.RehearsalVerdict:
    run = run_directory(folder, RESTART)
    return rehearsal_verdict.judge(
        Fault(KILL_RANK, rank=1, step=3), found, run, num_steps=4, exit_code=exit_code, bound=lambda: bound
    )


def test_verdict_on_a_training_that_goes_on(tmp_path: Path) -> None:
    told = judged(tmp_path, records(*STEPS))
    assert told.survives
    assert told.text() == "survives: 2 steps computed again; goes on after 0.8 s; the same weights"
    assert told.cause == "killed by a signal"
    assert told.as_plain()["lost_steps"] == 2


@pytest.mark.parametrize(
    ("end", "exit_code", "bound", "text"),
    [
        ({}, 124, 1e-6, "fails: exit code 124: time limit · --timeout 3 s has passed"),
        ({"lacks": "model-0/weight"}, 0, 1e-6, "fails: another training: model-0/weight is not in both states"),
        ({"is_same": False, "difference": 0.5, "tensor": "model-0/bias"}, 0, 1e-6,
         "fails: the weights are others at the end: model-0/bias differs by 5.0e-01, and rounding explains 1e-06"),
        ({"is_same": False, "difference": 5e-7, "weights": 2e-8, "tensor": "model-0/bias"}, 0, 1e-6,
         "survives: 2 steps computed again; goes on after 0.8 s; the same weights to 2e-08"),
        ({"is_same": False, "difference": 2e-4, "weights": 2e-4, "tensor": "model-0/bias"}, 0, 1e-3,
         "survives: 2 steps computed again; goes on after 0.8 s; the same weights to 2e-04"),
    ],
)  # fmt: skip
def test_verdict_on_other_ends(tmp_path: Path, end: "dict[str, Any]", exit_code: int, bound: float, text: str) -> None:
    told = judged(tmp_path, records(*STEPS, end=end), exit_code=exit_code, bound=bound)
    assert told.text().startswith(text)
    assert told.survives == text.startswith("survives")


def test_verdict_needs_a_named_cause_and_a_fault(tmp_path: Path) -> None:
    """A run that went on without a word about the fault, or that had none, is no proof."""
    run = run_directory(tmp_path)
    for found, why in (
        (records(*STEPS), "echelon did not name the cause"),
        (rehearsal_verdict.Records([], {}, {}), "the fault did not happen"),
    ):
        fault = Fault(DROP_NODE, rank=1, step=3)
        told = rehearsal_verdict.judge(fault, found, run, num_steps=4, exit_code=0, bound=lambda: 1e-6)
        assert told.why_not.startswith(why)
