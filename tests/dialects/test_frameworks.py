"""`echelon frameworks`: what is installed, for which devices, and what does not work together."""

import importlib
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from echelon.dialects import installed
from echelon.dialects.installed import FRAMEWORKS, Build, fits, is_older, problems
from echelon.hardware import vendors

CPU = Build(version="2.13.0+cpu")
XPU = Build(version="2.13.0+xpu", vendor=vendors.INTEL, toolkit_version="20250301")
CUDA = Build(version="2.13.0+cu130", vendor=vendors.NVIDIA, toolkit_version="13.0")
ROCM = Build(version="2.13.0+rocm7.1", vendor=vendors.AMD, toolkit_version="7.1")


def frameworks(*arguments: str, **environ: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "echelon", "frameworks", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, env={**os.environ, **environ})


def distribution(folder: Path, name: str, version: str, requires: str = "") -> None:
    """Lay down the metadata of a package, as pip does."""
    path = folder / f"{name}-{version}.dist-info"
    path.mkdir(parents=True)
    wants = f"Requires-Dist: {requires}\n" if requires else ""
    (path / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{wants}\n")


def test_table_names_every_framework_and_imports_none() -> None:
    """Each row with its version or with what installs it; nothing is imported, so it takes no second."""
    done = frameworks(PYTHONDONTWRITEBYTECODE="1", PYTHONPROFILEIMPORTTIME="1")
    assert not [line for line in done.stderr.splitlines() if line.endswith((" torch", " transformers", " tensorflow"))]
    for row in FRAMEWORKS:
        line = next(line for line in done.stdout.splitlines() if line.startswith(row.name))
        assert (installed.version(*row.distributions) or row.install) in line


def test_json_says_the_same() -> None:
    """The table as data, with a format."""
    facts = json.loads(frameworks("--json").stdout)
    assert facts["format"] == 1
    assert facts["python"] == sys.executable
    assert [each["name"] for each in facts["frameworks"]] == [row.name for row in FRAMEWORKS]
    assert {each["name"]: each["version"] for each in facts["frameworks"]} == {
        row.name: installed.version(*row.distributions) for row in FRAMEWORKS
    }


def test_a_named_framework_that_is_missing_is_exit_code_1() -> None:
    """So that a batch script can ask first."""
    missing = next(row.name for row in FRAMEWORKS if not installed.version(*row.distributions))
    done = frameworks(missing)
    assert (done.returncode, "pip install" in done.stdout) == (1, True)


def test_unknown_names_are_refused() -> None:
    """With the names that are known."""
    done = frameworks("pytorch")
    assert done.returncode == 2
    assert "echelon does not know the framework pytorch" in done.stderr
    assert "torch, transformers" in done.stderr


def test_import_happens_in_a_process_of_its_own(tmp_path: Path) -> None:
    """--import says how long it takes, or why it fails; the command itself lives on."""
    (tmp_path / "horovod").mkdir()
    (tmp_path / "horovod" / "__init__.py").write_text("raise OSError('libmpi.so.40: cannot open')\n")
    distribution(tmp_path, "horovod", "0.28.1")
    (tmp_path / "mpi4py").mkdir()
    (tmp_path / "mpi4py" / "__init__.py").write_text("")
    distribution(tmp_path, "mpi4py", "4.1.2")
    done = frameworks("--import", "horovod", "mpi4py", PYTHONPATH=str(tmp_path))
    assert done.returncode == 1
    assert "import fails: OSError: libmpi.so.40" in done.stdout
    assert "imported in" in done.stdout


def test_what_a_package_says_of_its_companion(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As `pip check` does, also for what only an extra names."""
    distribution(tmp_path, "transformers", "5.23.0", "accelerate>=1.1.0; extra == 'torch'")
    distribution(tmp_path, "accelerate", "0.34.2")
    monkeypatch.syspath_prepend(str(tmp_path))
    importlib.invalidate_caches()
    (wrong,) = problems({"transformers": "5.23.0", "accelerate": "0.34.2"}, None, "")
    assert wrong.text == "transformers 5.23.0 needs accelerate>=1.1.0, but 0.34.2 is installed"
    assert (wrong.breaks, wrong.hint) == (True, "pip install 'accelerate>=1.1.0'")


@pytest.mark.parametrize(
    ("build", "vendor", "said"),
    [(CPU, "nvidia", "built for the CPU"), (XPU, "amd", "built for oneAPI 20250301, but"),
     (CUDA, "amd", "CUDA 13.0, but this machine has AMD devices"),
     (ROCM, "nvidia", "ROCm 7.1, but this machine has NVIDIA devices"), (CUDA, "nvidia", ""), (ROCM, "amd", ""),
     (CPU, "", "")],
)  # fmt: skip
def test_torch_is_built_for_these_devices_or_not(build: Build, vendor: str, said: str) -> None:
    """A wheel for the wrong kind of device is named; without devices nothing is wrong."""
    texts = [problem.text for problem in problems({"torch": build.version}, build, vendor)]
    assert bool(texts) == bool(said)
    assert not said or said in texts[0]


@pytest.mark.parametrize(
    ("versions", "named"),
    [
        ({"deepspeed": "0.14.0", "torch": "2.6.0"}, "deepspeed"),
        ({"deepspeed": "0.14.4", "torch": "2.6.0"}, ""),
        ({"deepspeed": "0.14.0", "torch": "2.3.1"}, ""),
        ({"mosaicml-streaming": "0.13.0", "transformers": "5.23.0"}, "mosaicml-streaming"),
        ({"tensorflow": "2.21.0", "keras": "3.15.0"}, "tensorflow"),
        ({"tensorflow": "2.15.0", "keras": "2.15.0"}, ""),
    ],
)
def test_known_conflicts(versions: dict[str, str], named: str) -> None:
    """Each row of the table, on both sides of its bounds."""
    found = [problem.package for problem in problems(versions, None, "")]
    assert found == ([named] if named else [])


def test_versions_are_compared_as_pip_does() -> None:
    """Numbers, not letters; a local label and a trailing zero do not count."""
    assert is_older("2.9.1", "2.13.0")
    assert not is_older("2.13.0+cpu", "2.13")
    assert fits("1.15.0", ">=1.1.0,<2")
    assert fits("2.13.0+cpu", "==2.13.0")
    assert fits("2.13.1", "==2.13.*")
    assert fits("2.13.1", "~=2.10")
    assert not fits("3.0", "~=2.10")
    assert not fits("0.34.2", ">=1.1.0")
    assert not fits("2.13.0", "!=2.13.0")
