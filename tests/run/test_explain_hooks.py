"""`echelon run --explain-hooks` beside the hooks of a real run."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from tests import warm

from echelon.pytorch import targets

SOURCES = Path(__file__).parents[2] / "src"
TRAINS = """
import json
import sys

import torch

open("was-run", "w").close()
print(json.dumps(sorted({(row.name, row.by) for row in sys.modules["_echelon.train.patches"].rows()})))
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
model(torch.ones(4, 4)).mean().backward()
optimizer.step()
"""
PRIVATE = "Private names of PyTorch that are used, and looked up before a run"
EXPLICIT = "import echelon\n\nrun = echelon.start()\n"


NOT_NEEDED = re.compile(
    r"torch\.(backends\..*|_C\._(cuda|xpu)_\w+|utils\.tensorboard.*|nn\.RNN_\w+|distributed\.\w+)|"
    r"torch\.autograd\.Function\.__init_subclass__|.*…|.*\.wait_for_unshard|.*\._functional_collectives\.\w+"
)
"""Settings and a made-up name; what is measured and may be missing."""


def is_looked_up(name: str) -> bool:
    """Say whether a name of PyTorch stands in the table that is checked, perhaps under the module that defines it."""
    last_two = ".".join(name.split(".")[-2:])
    known = {target.name for feature in targets.FEATURES for target in targets.of(feature)}
    return bool(NOT_NEEDED.fullmatch(name)) or any(one == name or one.endswith(f".{last_two}") for one in known)


def explain(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return warm.run(["-m", "echelon", "run", "--explain-hooks", *words], cwd=folder)


def explained(folder: Path, *words: str) -> list[dict[str, str]]:
    done = explain(folder, "--json", *words)
    assert done.returncode == 0, done.stderr
    rows: list[dict[str, str]] = json.loads(done.stdout)
    return rows


def test_table_is_that_of_a_run(tmp_path: Path) -> None:
    """Each name that a real rank 0 has replaced stands in the table, with who replaces it."""
    (tmp_path / "train.py").write_text(TRAINS)
    rows = explained(tmp_path, "-n", "2", "train.py")
    assert not (tmp_path / "was-run").exists()
    done = warm.run(["-m", "echelon", "run", "-n", "2", "train.py"], cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    in_run = {tuple(pair) for pair in json.loads(done.stdout)}
    in_table = {(row["name"], row["by"]) for row in rows if row["ranks"] != "all ranks but rank 0"}
    assert len(in_run) > 150
    assert in_run == in_table
    assert [name for name, _ in in_run if name.startswith("torch.") and not is_looked_up(name)] == []


def test_person_reads_it(tmp_path: Path) -> None:
    """No line is wider than 80 columns; names are below their reason; the order of several patches is told."""
    done = explain(tmp_path, "--scale", "tensor")
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert max(map(len, lines)) <= 80
    at = lines.index("  hooks: The gradients of a loss are those of the whole batch.")
    assert lines[at + 1] == "      torch.Tensor.backward, torch.autograd.backward"
    assert "torch._C._storage_Use_Count" in " ".join(lines[lines.index(PRIVATE) :])
    assert (
        "  torch.save: files.writers, model_parallel.hooks, measuring.install"
        in lines[lines.index("Names with several rows, and which is called first") :]
    )


@pytest.mark.parametrize(
    ("words", "name", "by"),
    [
        (["--sync-bn"], "torch.nn.functional.batch_norm", "batch_norm"),
        (["--per-device-batch"], "torch.utils.data.DataLoader.__len__", "hooks"),
        (["--sync-every", "8"], "torch.save", "local_sgd.hooks"),
        (["--scale", "fsdp", "--exact", "4"], "torch.optim.Adam.step", "optimizer_kinds"),
        (["--scale", "pipeline"], "torch.nn.Module.compile", "model_parallel.hooks"),
    ],
)
def test_options_change_the_table(tmp_path: Path, words: list[str], name: str, by: str) -> None:
    """What only an option needs is in its table, and not in that of plain --scale data."""
    assert (name, by) in {(row["name"], row["by"]) for row in explained(tmp_path, *words)}


OWN = """
from echelon import Replicated

print("a word", flush=True)
{broken}

class Mine(Replicated):
    pass
"""


def test_own_parallelism(tmp_path: Path) -> None:
    """The table of a class in a file of the user is that of the class; a file that fails is one error."""
    (tmp_path / "mine.py").write_text(OWN.format(broken=""))
    assert len(explained(tmp_path, "--scale", "mine.py:Mine")) > 150
    (tmp_path / "mine.py").write_text(OWN.format(broken="1 / 0"))
    done = explain(tmp_path, "--scale", "mine.py:Mine")
    assert (done.returncode, done.stdout) == (2, "")
    assert "the file fails with ZeroDivisionError" in done.stderr


def test_why_nothing_is_replaced(tmp_path: Path) -> None:
    """A program is left as it is; a script that is not scaled is measured; echelon.start() replaces what it needs."""
    (tmp_path / "train.py").write_text(TRAINS)
    (tmp_path / "other.py").write_text("print(1)")
    (tmp_path / "explicit.py").write_text(EXPLICIT)
    for words, why in (
        (("--scale", "off", "train.py"), "--scale off"),
        (("other.py",), "other.py calls no backward() and steps no optimizer of torch.optim"),
    ):
        told = " ".join(explain(tmp_path, *words).stdout.split())
        assert told.startswith(f"echelon run, which measures the script and does not scale it ({why}), replaces")
        assert {row["by"] for row in explained(tmp_path, *words)} == {"events", "measuring.install"}
    assert explain(tmp_path, "--", "ls").stdout.startswith("echelon replaces nothing: ls is a program")
    names = {row["name"] for row in explained(tmp_path, "explicit.py")}
    assert "torch.Tensor.backward" in names
    assert "builtins.open" not in names


@pytest.mark.parametrize(
    ("words", "message", "hint"),
    [
        (["absent.py"], "there is no script absent.py in", "ls "),
        (["--scale", "all"], "--scale all: the choices are auto", "echelon run --scale auto"),
        (["--exact", "3"], "--exact 3: a binary tree adds up the shards", "--exact 2"),
        (["--container", "x.sif", "train.py"], "the Python of x.sif runs the script", "remove --container"),
    ],
)
def test_wrong_input(tmp_path: Path, words: list[str], message: str, hint: str) -> None:
    """Each has one error, a repair and exit code 2."""
    done = explain(tmp_path, *words)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(f"echelon: error: {message}")
    assert f"\n  hint: {hint}" in done.stderr


@pytest.mark.parametrize("command", ["submit", "prove"])
def test_other_command(tmp_path: Path, command: str) -> None:
    """Another command says whose option it is."""
    done = warm.run(["-m", "echelon", command, "--explain-hooks", "train.py"], cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert "hint: --explain-hooks is an option of echelon run" in done.stderr


def test_python_without_pytorch(tmp_path: Path) -> None:
    """Nothing can be installed there: one error with the repair, and no traceback."""
    code = f"import sys; sys.path.insert(0, {str(SOURCES)!r}); from echelon.cli import main; "
    words = [sys.executable, "-IS", "-c", code + "sys.exit(main(['run', '--explain-hooks']))"]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("echelon: error: the Python of echelon has no PyTorch")
    assert done.stderr.endswith("\n  hint: pip install torch\n")
