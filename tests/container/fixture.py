"""Offer containers to pytest: `from tests.container.fixture import singularity` in a conftest.py."""

import os
import shutil
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

import echelon

from .image import Image

SYSTEM = Image()
SCRIPT = Path(__file__).with_name("singularity")


@dataclass(frozen=True)
class Singularity:
    """Where the stand-in is installed, and how an image is made."""

    folder: Path
    """The folder of `singularity` and `apptainer`, which stands first in PATH."""

    def image(self, path: Path, image: Image = SYSTEM) -> Path:
        """Write an image from which echelon and the virtual environment of the tests are hidden."""
        hidden = {str(Path(echelon.__file__).resolve().parents[1])} if _is_source() else set()
        if sys.prefix != sys.base_prefix:
            hidden.add(sys.prefix)
        return replace(image, hidden=[*image.hidden, *sorted(hidden)]).write(path)


def require_bubblewrap() -> None:
    """Skip the test where no container can be made; fail it where it must be possible, under CI=true."""
    reason = ""
    if os.geteuid() != 0:
        reason = "the stand-in for Singularity needs root: it mounts"
    elif not shutil.which("bwrap"):
        reason = "bwrap not found; install with: tools/install-slurm"
    if reason and os.environ.get("CI") == "true":
        pytest.fail(reason)
    if reason:
        pytest.skip(reason)


@pytest.fixture
def singularity(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Iterator[Singularity]:
    """Put `singularity` and `apptainer` first in PATH."""
    require_bubblewrap()
    folder = tmp_path_factory.mktemp("singularity")
    # The interpreter of the tests: another may be too old, and a shim for one is slow.
    _, _, program = SCRIPT.read_text().partition("\n")
    program = program.replace("__file__", repr(str(SCRIPT)))
    for name in ("singularity", "apptainer"):
        (folder / name).write_text(f"#!{sys.executable} -IS\n{program}")
        (folder / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ.get('PATH', os.defpath)}")
    yield Singularity(folder)


def _is_source() -> bool:
    # Of an installed one the image hides the package itself.
    return Path(echelon.__file__).resolve().parents[1].name == "src"
