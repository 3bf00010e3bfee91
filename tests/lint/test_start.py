"""`echelon run` and `echelon submit` say the worst mistake of their script, in one line, and go on."""

import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from echelon.cli.mistakes import MOST_BYTES, say_worst
from echelon.script.reading import of_job
from echelon.spec import Command, Job

SAVES = """\
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
torch.save({}, "model.pt")
data = Data(download=True)
"""
FORGETS = """\
from data import batches, compute, optimizer
for batch in batches:
    compute(batch).backward()
    optimizer.step()
"""
SAID = (
    "echelon: lint: warning ECH509 in train.py:4: every rank writes 'model.pt': the ranks overwrite each other's data, "
    "and 1 more; echelon lint train.py\n"
)


def said(capsys: pytest.CaptureFixture[str], folder: Path, *, kind: str = "script", target: str = "train.py",
         scale: str = "off", run_directory: str = "") -> str:  # fmt: skip
    reading = of_job(Job(command=Command(kind=kind, target=target)))
    say_worst(reading, scale=scale, run_directory=run_directory)
    out, err = capsys.readouterr()
    assert out == ""
    return err


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text(SAVES)
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "__init__.py").touch()
    (tmp_path / "package" / "train.py").write_text(SAVES)
    return tmp_path


def test_worst_and_how_many_more(capsys: pytest.CaptureFixture[str], folder: Path) -> None:
    """One line: severity, rule, place, what is wrong, and the command that shows the rest."""
    assert said(capsys, folder) == SAID


def test_module_is_read_too(capsys: pytest.CaptureFixture[str], folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """-m names a module, and its file is read."""
    monkeypatch.syspath_prepend(str(folder))
    assert said(capsys, folder, kind="module", target="package.train") == SAID.replace("train.py", "package/train.py")
    assert said(capsys, folder, kind="module", target="package.gone") == ""


def test_what_scaling_sees_to_is_not_said(capsys: pytest.CaptureFixture[str], folder: Path) -> None:
    """Of a script that is scaled only what is wrong on one device is said."""
    assert said(capsys, folder, scale="data") == ""
    (folder / "train.py").write_text("import torch\nmodel = torch.nn.DataParallel(torch.nn.Linear(2, 2))\n")
    assert "ECH517" in said(capsys, folder)
    assert said(capsys, folder, scale="data") == ""
    (folder / "train.py").write_text(FORGETS)
    assert "error ECH520 in train.py:3" in said(capsys, folder, scale="data")


def test_submit_has_said_it(capsys: pytest.CaptureFixture[str], folder: Path) -> None:
    """In the job the run directory is the one that `echelon submit` made, and nothing is said twice."""
    (folder / "run").mkdir()
    assert said(capsys, folder, run_directory=str(folder / "run")) == SAID
    (folder / "run" / "job.sh").touch()
    assert said(capsys, folder, run_directory=str(folder / "run")) == ""


@pytest.mark.parametrize(
    "source",
    [
        b"",
        b"print(1)\n",
        b"def f(:\n",
        b"\xff\xfe\x00",
        b"import torch\n" + b"#" * MOST_BYTES,
        SAVES.replace("\n", "  # echelon: ignore\n").encode(),
    ],
    ids=["empty", "good", "syntax", "binary", "large", "silenced"],
)
def test_nothing_to_say(capsys: pytest.CaptureFixture[str], folder: Path, source: bytes) -> None:
    """What is good, silenced, too large for a start or no Python is no word, and no error."""
    (folder / "train.py").write_bytes(source)
    assert said(capsys, folder) == ""
    assert said(capsys, folder, target="gone.py") == ""
    assert said(capsys, folder, kind="program", target="train.py") == ""


def test_a_start_reads_one_file_once(folder: Path) -> None:
    """A start imports nothing large for it, and parses the script once."""
    (folder / "train.py").write_text(SAVES)
    code = """
        import ast, sys
        import echelon.cli.run, echelon.launch.prepare, echelon.launch.start
        from echelon.script.reading import ScriptReading
        from echelon.spec import Command
        before, parses, parse = set(sys.modules), [], ast.parse
        ast.parse = lambda *words, **named: parses.append(words) or parse(*words, **named)
        from echelon.cli.mistakes import say_worst
        say_worst(ScriptReading(Command(kind="script", target="train.py")))
        print(len(parses), *sorted({name.partition(".")[0] for name in set(sys.modules) - before}))
    """
    command = [sys.executable, "-c", textwrap.dedent(code)]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True)
    assert "ECH509" in done.stderr
    number, *packages = done.stdout.split()
    assert int(number) == 1
    assert not {"torch", "numpy", "matplotlib"} & set(packages)


def test_run_says_it_and_goes_on(folder: Path) -> None:
    """`echelon run` says it before the ranks, which run all the same; with --check off it is quiet."""
    script = "print('ran')\nif False:\n" + textwrap.indent(SAVES, "    ")
    (folder / "train.py").write_text(script)
    command = [sys.executable, "-m", "echelon", "run", "--scale", "off", "-n", "1"]
    done = subprocess.run([*command, "train.py"], cwd=folder, capture_output=True, text=True, check=True)
    assert done.stdout == "ran\n"
    assert done.stderr.splitlines()[0].startswith("echelon: lint: warning ECH509 in train.py:6: every rank writes")
    done = subprocess.run(
        [*command, "--check", "off", "train.py"], cwd=folder, capture_output=True, text=True, check=True
    )
    assert (done.stdout, "lint" in done.stderr) == ("ran\n", False)


@pytest.mark.parametrize(
    ("launch", "source", "is_looked_at"),
    [
        ("warm", "import os\n", False),
        ("exec", "import os\n", False),
        ("warm", "def main():\n    import torch\n", True),
        ("exec", "import package\n", True),
    ],
)
def test_without_packages_nobody_looks(folder: Path, launch: str, source: str, *, is_looked_at: bool) -> None:
    """A script that has Python's own library alone starts without what looks for mistakes of training."""
    (folder / "train.py").write_text(source)
    code = (
        "import sys; from echelon.cli import main; main()\n"
        "print(sorted({name.split('.')[1] for name in sys.modules if name.startswith('echelon.lint.')}))"
    )
    command = [sys.executable, "-c", code, "run", "--launch", launch, "-n", "1", "train.py"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True)
    assert done.stdout == ("['lint']\n" if is_looked_at else "[]\n")
