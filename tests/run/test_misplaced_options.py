"""Command lines as people type them: `--` before a script, and options of ours behind it."""

import pytest

from .shell import Shell

RANK = "import os; print(os.environ['RANK'])"
QUIET = "import json\nprint('trained')\n"
TRAINS = """
import torch
from torch import nn
model = nn.Linear(2, 1)
model.eval()
model.train()
model(torch.ones(4, 2)).mean().backward()
"""
PARSES = (
    "import argparse\nparser = argparse.ArgumentParser()\nparser.add_argument('-n')\nprint(parser.parse_args().n)\n"
)
OVERLOOKS = "import argparse\nprint(argparse.ArgumentParser().parse_known_args()[1])\n"


@pytest.mark.parametrize("line", ["--standalone --nproc-per-node=2 -- train.py", "-n 2 -- ./train.py"])
def test_script_after_two_dashes(shell: Shell, line: str) -> None:
    """torchrun's line may have -- before its script: a Python file that is no program is run by Python."""
    shell.script(RANK)
    done = shell.fork("--show", "all", *line.split())
    assert sorted(done.stdout.split()) == [b"0", b"1", b"[0]", b"[1]"], done.said


@pytest.mark.parametrize("words", ["-n 2", "--nproc_per_node=2", "--scale data"])
def test_option_behind_a_script_that_reads_none(shell: Shell, words: str) -> None:
    """An option of ours that nobody would read is refused, with the line to type."""
    shell.script(QUIET)
    done = shell.fork("train.py", *words.split())
    assert done.exit_code == 2
    assert f"{words} comes after train.py, which reads no arguments\n  hint: echelon run {words} train.py" in done.said


def test_option_behind_a_training(shell: Shell) -> None:
    """A training that evaluates a model and calls backward() reads no arguments by that."""
    shell.script(TRAINS)
    done = shell.fork("train.py", "--exact", "8")
    assert done.exit_code == 2
    assert "--exact 8 comes after train.py, which reads no arguments" in done.said


def test_own_module_may_read_arguments(shell: Shell) -> None:
    """An option that the script's own modules read is not refused."""
    shell.script("import sys\nNUMBER = sys.argv[2]\n", "settings.py")
    shell.script("import settings\nprint(settings.NUMBER)\n")
    assert shell.fork("train.py", "-n", "2").stdout == b"2\n"


def test_script_with_the_same_option(shell: Shell) -> None:
    """A script has options of its own, with any name: its -n reaches it without a word of ours."""
    shell.script(PARSES)
    done = shell.fork("train.py", "-n", "7")
    assert (done.stdout, "note" in done.said) == (b"7\n", False), done.said


def test_option_that_a_parser_overlooks(shell: Shell) -> None:
    """Where a parser takes what it does not know, a note says whose argument it is."""
    shell.script(OVERLOOKS)
    done = shell.fork("train.py", "-n", "2")
    assert done.stdout == b"['-n', '2']\n"
    note = "note: -n 2 comes after train.py, so the script gets it; to give it to echelon: echelon run -n 2 train.py"
    assert note in done.said
