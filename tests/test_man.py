"""The manual page: real readers of manual pages show it without a complaint, and it lacks no option."""

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from echelon.cli import COMMANDS, main, man
from echelon.cli import help as helps

DOCS = Path(__file__).parents[1] / "docs"
NO_DATE = "WARNING: missing date"
"""The page has no date: the same sources make the same page."""


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("man") / "echelon.1"
    path.write_text(man.page(helps.of_all()))
    return path


def read(program: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a program that reads manual pages."""
    if shutil.which(program) is None:
        (pytest.fail if os.environ.get("CI") == "true" else pytest.skip)(f"no {program} here: tools/install-slurm")
    environ = {"PATH": os.environ["PATH"], "LC_ALL": "C.UTF-8", "MANWIDTH": "300", "MANROFFOPT": "-ww"}
    return subprocess.run([program, *arguments], env=environ, capture_output=True, text=True, timeout=60, check=False)


def test_man_shows_each_option_of_each_help(page: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`man` warns of nothing; below the title of a command stands each option that its --help names."""
    done = read("man", "--local-file", "--warnings", str(page))
    assert (done.returncode, done.stderr) == (0, "")
    text = re.sub(r".\x08", "", done.stdout)
    parts = dict(re.findall(r"^   echelon (\w+)\n(.*?)(?=^   \S|^\S)", text, re.M | re.S))
    assert list(parts) == list(COMMANDS)
    for command, part in parts.items():
        print(helps.of(command).text())
        explained = capsys.readouterr().out.partition("\n\n")[2].partition("\nexample:")[0]
        named = re.findall(r"(?<![\w-])--?[a-zA-Z][\w-]*", explained)
        assert [name for name in named if name not in part] == [], command


def test_groff_and_mandoc_find_nothing_wrong(page: Path) -> None:
    """Both take each line as it is meant."""
    done = read("groff", "-man", "-ww", "-z", "-Tutf8", str(page))
    assert (done.returncode, done.stderr) == (0, "")
    complaints = read("mandoc", "-T", "lint", "-W", "warning", str(page)).stdout.splitlines()
    assert [line for line in complaints if NO_DATE not in line] == []


def test_commands_can_be_pasted(page: Path) -> None:
    """A dash is a dash, not a hyphen, and no word is cut."""
    text = re.sub(r".\x08", "", read("man", "--local-file", str(page)).stdout)
    for command in COMMANDS:
        assert helps.of(command).example in text


def test_exit_codes_are_those_of_the_page_on_runs() -> None:
    """docs/run.md and the manual page know the same exit codes."""
    table = (DOCS / "run.md").read_text("utf-8").partition("\n| code | meaning |")[2].partition("\n\n")[0]
    told = re.findall(r"^\| ([\dN+ ]+) \|", table, re.M)
    assert set(told) <= {code for code, _ in man.EXIT_STATUS}


def test_page_is_printed_and_there_is_one(capsys: pytest.CaptureFixture[str]) -> None:
    """`echelon man` prints the page; a command has no page of its own, and that is said."""
    assert main(["man"]) == 0
    assert capsys.readouterr().out.startswith(".TH ECHELON 1")
    assert main(["man", "run"]) == 2
    assert "one page" in capsys.readouterr().err
