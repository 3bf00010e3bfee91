"""A script that continues with other arguments is told so, and what the checkpoint decides."""

import sys
import types
from pathlib import Path

import pytest

from echelon.train.replay import same_script


def test_other_arguments_are_named() -> None:
    """Those before and those of now; nothing where they are the same."""
    said: list[str] = []
    same_script.say_other_arguments(["--lr", "0.1"], ["--lr", "0.1"], said.append)
    assert said == []
    same_script.say_other_arguments(["--lr", "0.1"], [], said.append)
    assert said[0].startswith("note: the arguments of the script were --lr 0.1 at the checkpoint, and are none now; ")
    assert "learning rate" in said[0]


def test_settings_that_the_checkpoint_decides_are_named() -> None:
    said: list[str] = []
    same_script.say_settings(same_script.other_settings("SGD", {"lr": 0.1}, {"lr": 0.01}), said.append)
    assert said[0].startswith("note: SGD goes on with lr 0.01, as in the checkpoint, and not with 0.1")


def test_changed_files_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The script, and modules of its folder; nothing where they are as they were."""
    for name in ("train", "model", "other"):
        (tmp_path / f"{name}.py").write_text(name)
        module = types.ModuleType(name)
        module.__file__ = str(tmp_path / f"{name}.py")
        monkeypatch.setitem(sys.modules, "__main__" if name == "train" else f"changed_{name}", module)
    before = same_script.digests()
    assert {Path(path).name for path in before} == {"train.py", "model.py", "other.py"}
    said: list[str] = []
    same_script.say_edits(before, said.append)
    same_script.say_edits({}, said.append)
    assert said == []
    (tmp_path / "train.py").write_text("changed")
    (tmp_path / "other.py").unlink()
    same_script.say_edits(before, said.append)
    (line,) = said
    assert line.startswith(
        "note: edited while the run went on: other.py, train.py; the steps before the checkpoint are "
    )
