"""Standard input: a single rank reads it, as under python; of several ranks the rank of --debug."""

import os
import pty
import subprocess
import sys

import pytest

from .shell import Shell

ASKS = "import json\nprint('hello', input('who? '))\n"
ONLY_LAST = "import os\nrank = os.environ['RANK']\nprint(rank, input() if rank == '1' else '')\n"
BREAKS = "weight = 3\nbreakpoint()\nprint('trained')\n"


def piped(shell: Shell, words: list[str], typed: bytes) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        [sys.executable, "-m", "echelon", "run", *words], cwd=shell.folder, env=shell.environ, input=typed,
        capture_output=True, timeout=60, check=False,
    )  # fmt: skip


@pytest.mark.parametrize("launch", ["warm", "exec"])
def test_one_rank_reads_a_pipe(shell: Shell, launch: str) -> None:
    """Piped input reaches the script."""
    shell.script(ASKS)
    done = piped(shell, ["--launch", launch, "train.py"], b"you\n")
    assert done.stdout == b"who? hello you\n", done.stderr


def test_debugged_rank_reads_and_is_shown(shell: Shell) -> None:
    """With --debug 1, rank 1 reads the keyboard, and its output is shown."""
    shell.script(ONLY_LAST)
    done = piped(shell, ["-n", "2", "--debug", "1", "train.py"], b"typed\n")
    assert done.stdout == b"1 typed\n", done.stderr


def test_several_ranks_read_nothing(shell: Shell) -> None:
    """Without --debug what is typed would reach anyone: no rank of several gets it."""
    shell.script("import sys\nprint(repr(sys.stdin.read()))\n")
    assert piped(shell, ["-n", "2", "train.py"], b"typed\n").stdout == b"''\n"


def test_breakpoint_at_a_terminal(shell: Shell) -> None:
    """breakpoint() stops the script, answers what is typed, and goes on."""
    shell.script(BREAKS)
    ours, theirs = pty.openpty()
    with subprocess.Popen(
        [sys.executable, "-m", "echelon", "run", "train.py"], cwd=shell.folder, env=shell.environ, stdin=theirs,
        stdout=theirs, stderr=theirs,
    ) as process:  # fmt: skip
        os.close(theirs)
        heard = b""
        while b"(Pdb) " not in heard:
            heard += os.read(ours, 1 << 16)
        os.write(ours, b"p weight * 14\nc\n")
        while b"exit 0" not in heard:
            heard += os.read(ours, 1 << 16)
        assert process.wait(60) == 0
    os.close(ours)
    assert b"42\r\n" in heard
    assert b"trained\r\n" in heard


@pytest.mark.parametrize(
    ("words", "message", "hint"),
    [
        (["-n", "2", "--debug", "2"], "--debug 2: the last of 2 ranks is 1", "--debug 1"),
        (["--debug", "0", "--show", "all"], "--debug shows only its rank", "remove --show"),
        (["--debug", "x"], "--debug x: give a whole number of at least 0", "--debug 1"),
    ],
)
def test_wrong_rank_to_debug(shell: Shell, words: list[str], message: str, hint: str) -> None:
    """A rank that is not there, or that would not be seen, is an error."""
    shell.script("")
    done = shell.run(*words, "train.py")
    assert (done.exit_code, message in done.said, hint in done.said) == (2, True, True), done.said
