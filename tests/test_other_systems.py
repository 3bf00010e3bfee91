"""On macOS and Windows one can plan and lint; what needs Linux says so.

This Linux pretends: what those systems' Python lacks cannot be imported, or is gone from os.
"""

import subprocess
import sys
from pathlib import Path

import pytest

PRETEND = """
import os, sys
if PLATFORM == "win32":
    for name in ("fcntl", "grp", "pwd", "resource", "termios", "pty", "tty", "syslog"):
        sys.modules[name] = None
import subprocess  # as it was made for Linux
for name in LACKS:
    delattr(os, name)
sys.platform = PLATFORM
from echelon.cli import main
sys.exit(main(sys.argv[1:]))
"""
LACKS = {
    "win32": ("geteuid", "getuid", "getgid", "getgroups", "fork", "sched_getaffinity", "getpriority", "uname", "chown"),
    "darwin": ("sched_getaffinity", "sched_setaffinity", "memfd_create"),
}
JOB = "#!/bin/bash\n#SBATCH --nodes=2\n#SBATCH --time=1:00:00\nsrun python train.py\n"


def run(folder: Path, platform: str, *words: str) -> "subprocess.CompletedProcess[str]":
    program = PRETEND.replace("LACKS", repr(LACKS[platform])).replace("PLATFORM", repr(platform))
    command = [sys.executable, "-c", program, *words]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=60, check=False)


@pytest.mark.parametrize("platform", LACKS)
def test_facts_are_read_anywhere(tmp_path: Path, platform: str) -> None:
    """`plan`, `machines` and `lint` work, and so do completion and the manual page."""
    (tmp_path / "job.sh").write_text(JOB)
    (tmp_path / "train.py").write_text("print('trained')\n")
    lumi = ("--machine", "lumi", "--gpus", "8", "--time", "1h")
    for words in (
        ("plan", *lumi),
        ("machines",),
        ("lint", "job.sh"),
        ("completion", "bash"),
        ("man",),
    ):
        done = run(tmp_path, platform, *words)
        assert "Traceback" not in done.stderr
        assert done.returncode in ((0, 1) if words[0] == "lint" else (0,)), (words, done.stderr)
        assert done.stdout


@pytest.mark.parametrize("platform", LACKS)
@pytest.mark.parametrize("command", ["run", "exec", "submit", "check", "topology", "prove", "frameworks"])
def test_what_needs_linux_says_so(tmp_path: Path, platform: str, command: str) -> None:
    """One line names the command, the system and what works there."""
    done = run(tmp_path, platform, command, "train.py")
    assert done.returncode == 2
    assert done.stderr == (
        f"echelon: error: echelon {command} needs Linux, but this is {platform}; "
        "here plan, lint, machines, completion, man work\n"
        "  hint: run it on the cluster\n"
    )
