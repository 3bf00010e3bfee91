"""echelon.pyz: one file that python3 starts, without an installation, and that says so where Python is too old."""

import ast
import functools
import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests import pythons

ROOT = Path(__file__).parents[1]
PLAN = ("plan", "--machine", "lumi", "--gpus", "16", "--time", "2h")
OLD = pythons.at_hand(6, 7, 8, 9)


@pytest.fixture(scope="module")
def pyz(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Pack the sources as `make pyz` does; tomli is in its file for Python 3.10 alone."""
    target = tmp_path_factory.mktemp("pyz") / "echelon.pyz"
    subprocess.run([sys.executable, str(ROOT / "packaging" / "build_pyz.py"), str(target)], check=True)
    return target


@pytest.fixture
def run(pyz: Path, tmp_path: Path) -> "functools.partial[subprocess.CompletedProcess[str]]":
    """Start a Python with the file, in an empty folder and with an empty home."""
    environ = {"HOME": str(tmp_path / "home"), "PATH": os.environ["PATH"]}
    (tmp_path / "home").mkdir()
    return functools.partial(
        subprocess.run, cwd=tmp_path, env=environ, capture_output=True, text=True, timeout=100, check=False
    )


def test_plan_without_an_installation(pyz: Path, run: functools.partial) -> None:
    """Python without any packages plans; the second start finds what the first has unpacked."""
    for _ in range(2):
        done = run([sys.executable, "-I", "-S", str(pyz), *PLAN])
        assert done.returncode == 0, done.stderr
        assert "16 GPU-hours" in done.stdout
    kept = list(Path(run.keywords["env"]["HOME"], ".cache", "echelon").iterdir())
    assert [(path.name[:4], path.stat().st_mode & 0o777) for path in kept] == [("pyz-", 0o700)]


def test_run_from_the_file(pyz: Path, run: functools.partial, tmp_path: Path) -> None:
    """Ranks start as from an installation."""
    (tmp_path / "hello.py").write_text("import os\nprint('rank', os.environ['RANK'])\n")
    done = run([sys.executable, str(pyz), "run", "-n", "2", "--show", "all", "hello.py"])
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.split("\n")) == ["", "[0] rank 0", "[1] rank 1"]


def test_trials_of_a_sweep_start_from_the_file(pyz: Path, run: functools.partial, tmp_path: Path) -> None:
    """What the file starts with -m starts the file again."""
    (tmp_path / "hello.py").write_text("import sys\nprint('x', sys.argv[1])\n")
    words = ["sweep", "-p", "n=7", "--metric", "x", "hello.py", "{n}"]
    done = run([sys.executable, "-I", "-S", str(pyz), *words])
    assert "best x 7: n=7" in done.stderr


def test_job_starts_the_same_file(pyz: Path, run: functools.partial, tmp_path: Path) -> None:
    """A batch script that the file writes starts the file, for echelon is not installed in the job either."""
    (tmp_path / "hello.py").write_text("print('hello')\n")
    words = ["submit", "--machine", "lumi", "--gpus", "8", "--time", "1h", "-A", "project_1", "--dry-run", "hello.py"]
    done = run([sys.executable, str(pyz), *words])
    assert f"exec {sys.executable} {pyz} run " in done.stdout, done.stderr


def test_home_that_cannot_be_written(pyz: Path, run: functools.partial) -> None:
    """The content goes into a folder for this process alone, which leaves nothing behind."""
    scratch = Path(run.keywords["cwd"]) / "scratch"
    scratch.mkdir()
    run.keywords["env"].update(HOME="/proc", TMPDIR=str(scratch))
    done = run([sys.executable, str(pyz), *PLAN])
    assert done.returncode == 0, done.stderr
    assert list(scratch.iterdir()) == []


def test_folder_of_another_user_is_not_used(pyz: Path, run: functools.partial) -> None:
    """Files that another user laid into the cache are not imported."""
    if os.geteuid() != 0:
        (pytest.fail if os.environ.get("CI") == "true" else pytest.skip)("only root can give a folder to another user")
    assert run([sys.executable, str(pyz), "--version"]).returncode == 0
    (kept,) = Path(run.keywords["env"]["HOME"], ".cache", "echelon").iterdir()
    (kept / "echelon" / "cli" / "plan.py").write_text("raise SystemExit('a stranger was here')\n")
    os.chown(kept, 65534, 65534)
    done = run([sys.executable, str(pyz), *PLAN])
    assert "stranger" not in done.stdout + done.stderr
    assert done.returncode == 0


def test_entry_parses_on_old_python() -> None:
    """An old Python can read the file that tells it so."""
    ast.parse((ROOT / "packaging" / "pyz_main.py").read_text(), feature_version=(3, 6))


PRETEND = (
    "import runpy, sys; sys.version_info = (3, 9, 0); sys.argv = sys.argv[1:]; "
    "runpy.run_path(sys.argv[0], run_name='__main__')"
)
"""A new Python as an old one, for machines that have no old one."""


@pytest.mark.parametrize("python", [[sys.executable, "-c", PRETEND], *([old] for old in OLD)], ids=range(len(OLD) + 1))
def test_old_python_is_told(pyz: Path, run: functools.partial, python: list[str]) -> None:
    """Python 3.6 to 3.9 end with one error, the version that is needed and the repair."""
    done = run([*python, str(pyz), "lint", "job.sh"])
    assert done.returncode == 2
    assert done.stderr.startswith("echelon: error: echelon needs Python 3.10 or newer, and ")
    assert "hint: module load python" in done.stderr


def test_same_sources_make_the_same_file(pyz: Path, tmp_path: Path) -> None:
    """Two builds have equal bytes, so that a checksum can be published."""
    again = tmp_path / "again.pyz"
    subprocess.run([sys.executable, str(ROOT / "packaging" / "build_pyz.py"), str(again)], check=True)
    assert again.read_bytes() == pyz.read_bytes()
