"""A rehearsed script changes nothing outside of its scratch copy."""

import subprocess
from pathlib import Path

import pytest
from tests import warm

GUARDED = """
import os, shutil, sys
from echelon.train.rehearsal import faults
os.environ["TMPDIR"] = {temporary!r}
os.chdir({copy!r})
faults.install({copy!r}, {original!r})
{act}
"""


def act(tmp_path: Path, line: str) -> "subprocess.CompletedProcess[str]":
    original, temporary = tmp_path / "mine", tmp_path / "temporary"
    copy = original / ".echelon-rehearsal" / "copy"
    copy.mkdir(parents=True)
    temporary.mkdir()
    (original / "large.bin").write_text("large")
    (copy / "large.bin").symlink_to(original / "large.bin")
    program = GUARDED.format(original=str(original), copy=str(copy), temporary=str(temporary), act=line)
    (tmp_path / "guarded.py").write_text(program)
    return warm.run(["guarded.py"], cwd=tmp_path)


@pytest.mark.parametrize(
    "line",
    [
        "open('../../large.bin', 'w')",
        "open('large.bin', 'a')",  # a link to the user's file
        "open(os.path.expanduser('~') + '/results.txt', 'w')",
        "os.replace('large.bin', '../../moved.bin')",
        "os.remove('../../large.bin')",
        "shutil.rmtree('../..')",
        "os.mkdir('../../new')",
        "os.truncate('large.bin', 0)",
        "import torch; torch.save(1, 'large.bin')",  # C code, which follows the link
        "import torch; torch.save(1, f='../../new.pt')",
        "import sqlite3; sqlite3.connect('../../new.db')",
    ],
)
def test_change_outside_is_refused(tmp_path: Path, line: str) -> None:
    done = act(tmp_path, line)
    assert done.returncode == 1
    assert "OutsideError: the script would write into" in done.stderr
    assert (tmp_path / "mine" / "large.bin").read_text() == "large"
    assert {path.name for path in (tmp_path / "mine").iterdir()} == {"large.bin", ".echelon-rehearsal"}


@pytest.mark.parametrize(
    "line",
    [
        "open('new.txt', 'w').write('x')",
        "open('../../large.bin').read()",
        "os.remove('large.bin')",  # the link
        "os.rename('large.bin', 'other.bin')",
        "import tempfile; tempfile.NamedTemporaryFile()",
        "open('/dev/null', 'w')",
        "os.makedirs('a/b'); shutil.rmtree('a')",
        "import torch; torch.save(1, 'new.pt')",
    ],
)
def test_other_acts_are_free(tmp_path: Path, line: str) -> None:
    done = act(tmp_path, line)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "mine" / "large.bin").read_text() == "large"
