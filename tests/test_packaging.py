"""Installations: the wheel on each Python at hand, and recipes that agree with pyproject.toml."""

import ast
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from tests import pythons
from tests.tiers import some

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib  # pytest itself needs it there

from echelon import __version__

ROOT = Path(__file__).parents[1]
RECIPES = ROOT / "packaging"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
SHARED = {
    "man/man1/echelon.1": ".TH ECHELON 1",
    "bash-completion/completions/echelon": "complete -o bashdefault -o default -F _echelon echelon",
    "zsh/site-functions/_echelon": "#compdef echelon",
    "fish/vendor_completions.d/echelon.fish": "complete --command echelon",
}
"""What man and the shells find below an installation's share/."""
PYTHONS = pythons.at_hand(10, 11, 12, 13, 14, 15)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the wheel as pip does, from sources that are installed as editable here."""
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", str(folder), str(ROOT)]
    subprocess.run(command, check=True, capture_output=True, timeout=200)
    return next(folder.glob("*.whl"))


@pytest.mark.parametrize("python", some(PYTHONS, 4))
def test_wheel_is_installed_and_uninstalled(wheel: Path, tmp_path: Path, python: str) -> None:
    """In an empty environment `echelon plan` works, man and shells find their files; at the end no file is left."""
    subprocess.run([python, "-m", "venv", "--without-pip", str(tmp_path / "venv")], check=True, timeout=200)
    ours = tmp_path / "venv" / "bin" / "python"
    pip = [sys.executable, "-m", "pip", "--python", str(ours), "--quiet", "--disable-pip-version-check"]
    before = {path for path in (tmp_path / "venv").rglob("*") if path.is_file() and "__pycache__" not in path.parts}
    subprocess.run([*pip, "install", "--no-compile", str(wheel)], check=True, capture_output=True, timeout=200)
    command = [str(ours.parent / "echelon"), "plan", "--machine", "lumi", "--gpus", "16", "--time", "2h"]
    environ = {"PATH": os.environ["PATH"], "HOME": str(tmp_path)}
    done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=100, check=False)
    assert (done.returncode, "16 GPU-hours" in done.stdout) == (0, True), done.stderr
    for name, first in SHARED.items():
        assert first in (tmp_path / "venv" / "share" / name).read_text(), name
    subprocess.run([*pip, "uninstall", "--yes", "echelon"], check=True, capture_output=True, timeout=200)
    after = {path for path in (tmp_path / "venv").rglob("*") if path.is_file() and "__pycache__" not in path.parts}
    assert not {path for path in after - before if "tomli" not in str(path)}  # 3.10 keeps what it needed


def test_conda() -> None:
    """The recipe has the project's version, Python and build backend."""
    text = (RECIPES / "conda" / "meta.yaml").read_text()
    assert f'set version = "{__version__}"' in text
    assert text.count(f"- python {PROJECT['requires-python']}") == 2
    assert "hatchling >=1.24" in text
    assert "echelon = echelon.cli:main" in text


def test_spack() -> None:
    """The recipe is Python, and has the project's version and Python."""
    text = (RECIPES / "spack" / "package.py").read_text()
    ast.parse(text)
    assert f'version("{__version__}")' in text
    assert f'"python@{PROJECT["requires-python"].removeprefix(">=")}:"' in text


def test_easybuild() -> None:
    """The recipe is Python that sets the names EasyBuild needs."""
    (path,) = (RECIPES / "easybuild").glob("*.eb")
    tree = ast.parse(path.read_text())
    names = {target.id for node in tree.body if isinstance(node, ast.Assign) for target in node.targets}
    assert {"easyblock", "name", "version", "homepage", "description", "toolchain", "moduleclass"} <= names
    assert path.name == f"echelon-{__version__}.eb"


def test_module_file() -> None:
    """The file is named after the version, and its Lua parses where Lua is at hand."""
    (path,) = (RECIPES / "modulefiles" / "echelon").glob("*.lua")
    assert path.stem == __version__
    assert f'whatis("Version: {__version__}")' in path.read_text()
    if luac := shutil.which("luac") or shutil.which("luac5.4"):
        subprocess.run([luac, "-p", str(path)], check=True)


def test_apptainer() -> None:
    """The definition has a base image and each of its sections once."""
    text = (RECIPES / "apptainer" / "echelon.def").read_text()
    assert text.startswith("Bootstrap: docker\nFrom: ")
    assert re.findall(r"^%(\w+)$", text, re.M) == ["files", "post", "test", "runscript"]
