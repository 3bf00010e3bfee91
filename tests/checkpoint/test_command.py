"""`echelon checkpoint`: what people and scripts are told about the checkpoints of a run."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import safetensors.torch
import torch
from tests.checkpoint import training
from tests.train.strategies import ranks

from echelon.checkpoint.saver import Saver
from echelon.cli import main


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run with the checkpoints of steps 10 and 20; return the folder of these."""
    monkeypatch.chdir(tmp_path)
    directory = tmp_path / "echelon-runs" / "20261125-100253-train-b53a"
    directory.mkdir(parents=True)
    (directory / "events.jsonl").write_text("")
    folder = directory / "checkpoints"
    saver = Saver(str(folder), 0, 1)
    for step in (10, 20):
        weights = {"model-0/layer.weight": torch.full((2, 3), float(step)), "model-0/flag": torch.tensor(True)}
        others = {"model-ema/a": torch.ones(2, dtype=torch.complex128), "optimizer-0/layer.weight/step": torch.ones(1)}
        assert saver.save(step, {**weights, **others}, {"journal.json": b"{}"}, {"loss": 0.5})
        saver.wait()
    return folder


def told(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    """Return exit code, standard output and standard error."""
    capsys.readouterr()
    exit_code = main(["checkpoint", *words])
    shown = capsys.readouterr()
    return exit_code, shown.out, shown.err


def test_list(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The newest run, a run's name, its directory and its folder give the same table."""
    exit_code, out, err = told(capsys, "ls")
    assert (exit_code, err) == (0, "")
    assert [line.split()[0] for line in out.splitlines()] == ["step", "10", "20"]
    assert all(line.endswith("  1      yes") for line in out.splitlines()[1:])
    for word in ("train-b53a", "echelon-runs/20261125-100253-train-b53a", str(run), "b53"):
        assert told(capsys, "ls", word) == (0, out, "")


def test_list_as_json(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Scripts get the manifest."""
    (run / "step-000000020" / "manifest.json").unlink()
    exit_code, out, _ = told(capsys, "ls", "--json")
    assert exit_code == 0
    first, second = json.loads(out)["checkpoints"]
    assert (first["step"], first["whole"], first["ranks"], first["about"]) == (10, True, 1, {"loss": 0.5})
    assert first["files"] == ["journal.json", "rank-0.safetensors", "tensors.json"]
    assert (second["step"], second["whole"]) == (20, False)
    assert "it has no manifest.json" in second["finding"]


def test_verify(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Checksums are compared; a damage is a line and the exit code 1, which sizes alone do not show."""
    exit_code, out, _ = told(capsys, "verify")
    assert exit_code == 0
    assert [line.partition(":")[0] for line in out.splitlines()] == ["step 10 is whole", "step 20 is whole"]
    path = run / "step-000000020" / "rank-0.safetensors"
    content = path.read_bytes()
    path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    assert told(capsys, "ls")[1].count("yes") == 2
    exit_code, out, _ = told(capsys, "verify", "train-b53a")
    assert exit_code == 1
    line = "step-000000020 is not used: the content of rank-0.safetensors is not what was written"
    assert out.splitlines()[1] == line
    assert told(capsys, "verify", "10")[0] == 0
    assert told(capsys, "verify", "20", "train-b53a")[:2] == (1, line + "\n")
    exit_code, out, _ = told(capsys, "verify", "--json")
    assert (exit_code, [row["whole"] for row in json.loads(out)["checkpoints"]]) == (1, [True, False])


def test_export(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Each model is one file that the package safetensors reads; the optimizer is left out."""
    assert told(capsys, "export")[:2] == (0, "./model-0.safetensors\n./model-ema.safetensors\n")
    read = safetensors.torch.load_file(tmp_path / "model-0.safetensors")
    assert read.keys() == {"layer.weight", "flag"}
    assert torch.equal(read["layer.weight"], torch.full((2, 3), 20.0))
    assert safetensors.torch.load_file(tmp_path / "model-ema.safetensors")["a"].shape == (2, 16)
    assert told(capsys, "export", "10", "--out", "ten", "train-b53a")[0] == 0
    assert safetensors.torch.load_file("ten/model-0.safetensors")["layer.weight"][0, 0] == 10


def test_export_of_shards(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Rows and columns of several ranks become whole tensors."""
    ranks.run(4, training.saver_session, "fsdp", str(tmp_path / "c"), 1)
    assert told(capsys, "export", str(tmp_path / "c"), "--out", str(tmp_path / "out"))[0] == 0
    read = safetensors.torch.load_file(tmp_path / "out" / "model-0.safetensors")
    expected = training.Model(1).state_dict()
    assert read.keys() == expected.keys()
    assert all(torch.equal(read[name], one) for name, one in expected.items())


def test_export_of_columns(tmp_path: Path) -> None:
    """Parts that are no runs of rows are put together too."""
    from echelon.checkpoint import export

    ranks.run(3, training.save_dtensors, str(tmp_path / "c"))
    path = tmp_path / "c" / "tensors.json"
    path.write_text(
        path.read_text().replace('{"rows"', '{"model-0/rows"').replace('"columns": {', '"model-0/columns": {')
    )
    export.export(str(tmp_path / "c"), str(tmp_path / "out"))
    read = safetensors.torch.load_file(tmp_path / "out" / "model-0.safetensors")
    assert all(torch.equal(one, torch.arange(35.0).reshape(5, 7)) for one in read.values())
    assert len(read) == 2


def test_damaged_one_is_not_exported(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Without a step the one before is exported, and a line says why; a named step is refused."""
    os.truncate(run / "step-000000020" / "rank-0.safetensors", 10)
    exit_code, _, err = told(capsys, "export", "20")
    assert exit_code == 2
    assert "step 20 cannot be exported: rank-0.safetensors has 10 bytes" in err
    exit_code, _, err = told(capsys, "export")
    assert exit_code == 0
    assert "step-000000020 is not used" in err
    assert "of step 10" in err


MISTAKES = (
    ((), "echelon checkpoint needs a command: the commands are ls, verify, export"),
    (("list",), "echelon checkpoint has no command 'list': the commands are ls, verify, export"),
    (("ls", "nothing"), "there is no run nothing; the latest runs are train-b53a"),
    (("ls", "a", "b"), "takes one run, but got a b"),
    (("verify", "15"), "has no checkpoint of step 15; its steps are 10, 20"),
    (("export", "15"), "has no checkpoint of step 15; its steps are 10, 20"),
    (("ls", "--out", "x"), "--out is an option of echelon checkpoint export"),
    (("export", "--json"), "--json is an option of ls and verify"),
    (("export", "--out", ""), "--out '': it needs a folder"),
    (("ls", "empty"), "empty is neither a run directory nor a folder of checkpoints"),
)


@pytest.mark.parametrize(
    ("words", "message"), MISTAKES, ids=lambda one: " ".join(one) if isinstance(one, tuple) else ""
)
def test_wrong_command_line(
    words: tuple[str, ...], message: str, run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """One error names the thing and the choices; the exit code is 2."""
    (tmp_path / "empty").mkdir()
    exit_code, out, err = told(capsys, *words)
    assert (exit_code, out) == (2, "")
    assert message in " ".join(err.split())


def test_runs_without_checkpoints(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nothing is listed, and nothing can be verified."""
    monkeypatch.chdir(tmp_path)
    assert told(capsys, "ls")[0] == 2
    (tmp_path / "echelon-runs" / "20261125-100253-train-b53a").mkdir(parents=True)
    (tmp_path / "echelon-runs" / "20261125-100253-train-b53a" / "events.jsonl").write_text("")
    exit_code, _, err = told(capsys, "ls")
    assert (exit_code, "no run of this folder has checkpoints (runs: 1)" in err) == (2, True)
    exit_code, out, _ = told(capsys, "ls", "train-b53a")
    assert (exit_code, out) == (0, "echelon-runs/20261125-100253-train-b53a/checkpoints has no checkpoints\n")
    assert told(capsys, "verify", "train-b53a")[0] == 2
    assert told(capsys, "export", "train-b53a")[0] == 2


def test_file_is_not_replaced(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """An exported file stays as it is; a folder that cannot be written is named."""
    (tmp_path / "model-0.safetensors").write_text("mine")
    exit_code, _, err = told(capsys, "export")
    assert (exit_code, "model-0.safetensors already exists" in err) == (2, True)
    assert (tmp_path / "model-0.safetensors").read_text() == "mine"
    exit_code, _, err = told(capsys, "export", "--out", "model-0.safetensors/x")
    assert (exit_code, "cannot write model-0.safetensors/x" in err) == (1, True)


def test_no_torch_is_imported(run: Path) -> None:
    """All three commands answer without torch."""
    code = (
        "import sys; from echelon.cli import main\n"
        "assert [main(['checkpoint', verb]) for verb in ('ls', 'verify', 'export')] == [0, 0, 0]\n"
        "assert not {'torch', 'numpy'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, stdout=subprocess.DEVNULL)
