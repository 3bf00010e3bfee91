"""What stands after the script is the script's own: it arrives byte for byte, however the ranks are started."""

import os
import shlex
import sys

import pytest
from tests.tiers import product

from .shell import Argument, Shell

# writes what arrived, and closes each word with a zero byte, which none can contain
SCRIPT = """
import os, sys
with open("argv-" + os.environ["RANK"], "wb") as file:
    for word in sys.argv[1:]:
        file.write(os.fsencode(word) + bytes(1))
"""
ARGUMENTS = {
    "none": [],
    "spaces": ["two words", " ", "  leading", "trailing  ", "tab\tin it"],
    "quotes": ["'", '"', "it's", '"quoted"', "\\", "back\\slash", "`pwd`"],
    "shell": ["$(touch hacked)", "${HOME}", "$HOME", "a;b", "a|b", "&", ">out", "*", "~", "{1,2}", "!", "#"],
    "newlines": ["a\nb", "\n", "a\r\nb", "\x1b[31mred", "\x01\x7f"],
    "empty": ["", "", "last"],
    "dashes": ["--", "-", "--help", "--", "-n", "0", "--nnodes=9", "-m", "--version"],
    "options of ours": ["--env", "K", "--show", "x", "--run-dir", "/dev/null/x", "--frobnicate"],
    "json": ['{"a": [1, null], "b": "\\u00e4\\n"}', "\\u0041", "%s %d", "\\x00"],
    "other letters": ["größe", "数据", "🙂", "e\u0301"],
    "not UTF-8": [b"\xff\xfe", b"caf\xe9", b"\xed\xa0\x80", b"ok\x80ok", b"--name=\xc3"],
    "100 kB": [b"x" * 100_000, "ä" * 50_000, b"\xff" * 100_000],
    "many": [f"--option-{number}=value {number}" for number in range(2000)],
}
WAYS: dict[str, list[Argument]] = {
    "warm": ["--launch", "warm", "train.py"],
    "exec": ["--launch", "exec", "train.py"],
    "module": ["-m", "train"],
    "module exec": ["--launch", "exec", "-m", "train"],
    "program": ["--", sys.executable, "train.py"],
    "no-python": ["--no-python", sys.executable, "train.py"],
    "folder": ["package"],
}


@product(kind=list(ARGUMENTS), way=list(WAYS))
def test_arguments_reach_every_rank_unchanged(shell: Shell, kind: str, way: str) -> None:
    """No shell, no scanner and no encoding comes between the command line and sys.argv."""
    shell.script(SCRIPT)
    shell.script(SCRIPT, "package/__main__.py")
    arguments: list[str | bytes] = [*ARGUMENTS[kind]]
    done = shell.fork("-n", "2", *WAYS[way], *arguments)
    assert done.exit_code == 0, done.said
    expected = b"".join(os.fsencode(argument) + b"\0" for argument in arguments)
    for rank in range(2):
        assert (shell.folder / f"argv-{rank}").read_bytes() == expected
    assert shell.files("hacked") == []


@product(
    launch=["warm", "exec"], name=["two words.py", "größe.py", "-n.py", "$(touch hacked).py", "it's.py", "a\nb.py"]
)
def test_script_with_an_odd_name_runs(shell: Shell, name: str, launch: str) -> None:
    """A file name is not parsed by anybody; one that starts with a dash is written ./-n.py, as for python."""
    shell.script(SCRIPT, name)
    done = shell.run("--launch", launch, f"./{name}", "word")
    assert done.exit_code == 0, done.said
    assert (shell.folder / "argv-0").read_bytes() == b"word\0"
    assert shell.files("hacked") == []


@pytest.mark.parametrize("launch", ["warm", "exec"])
def test_script_whose_name_is_not_utf8_runs(shell: Shell, launch: str) -> None:
    """File names are bytes."""
    (shell.folder / os.fsdecode(b"caf\xe9.py")).write_text(SCRIPT)
    done = shell.run("--launch", launch, b"caf\xe9.py", b"\xe9")
    assert done.exit_code == 0, done.said
    assert (shell.folder / "argv-0").read_bytes() == b"\xe9\0"


@pytest.mark.parametrize("name", ['it\'s "größe" $(x) %s;\n数据', "a:b", "100%,x=y"])
def test_folder_with_an_odd_name_is_a_place_to_run(shell: Shell, name: str) -> None:
    """Run directory, logs and archive lie under a path of any letters, and the script runs once per rank."""
    shell.folder = shell.folder / name
    shell.script("open('runs', 'a').write('x')" + SCRIPT)
    done = shell.fork("-n", "2", "--show", "none", "train.py", "word")
    assert done.exit_code == 0, done.said
    assert (shell.folder / "argv-1").read_bytes() == b"word\0"
    assert (shell.folder / "runs").read_text() == "xx"
    assert "Traceback" not in done.said


def test_dry_run_shows_a_command_line_that_can_be_pasted(shell: Shell) -> None:
    """What --dry-run prints for the ranks is quoted so that a shell reads the same words."""
    shell.script(SCRIPT)
    words = ["two words", "it's", "$(x)", ""]
    done = shell.fork("--dry-run", "train.py", *words)
    (line,) = [line for line in done.stdout.decode().splitlines() if line.startswith("ranks  ")]
    assert shlex.split(line)[-5:] == ["train.py", *words]
    assert shell.files("echelon-runs*") == []
