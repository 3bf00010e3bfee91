"""`echelon prove` finds the planted mistakes, names them, and is silent of the correct scripts."""

import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from tests import warm
from tests.tiers import pick, some
from tests.trials.planted.score import BUGS, CORRECT, HERE, Case, Said, cases, said_of

CASES = cases()
CHOSEN = some(list(CASES), 19)
ALL_CORRECT = [path.stem for path in sorted(CORRECT.glob("*.py"))]
CHOSEN_CORRECT = pick([*ALL_CORRECT[::24], "overflow_of_each_rank"], all=ALL_CORRECT)
MISSED = 2  # mistakes that may go unseen, each with its reason
pytestmark = pytest.mark.timeout(1200)  # the first test waits for all scripts


def each_mistake() -> list[Any]:
    """Return the mistakes as parameters; those that cannot be seen are expected to fail, for the reason given."""
    return [
        pytest.param(case, id=name, marks=[pytest.mark.xfail(reason=case.missed, strict=True)] if case.missed else [])
        for name, case in CASES.items()
        if name in CHOSEN
    ]


@pytest.fixture(scope="module")
def said() -> Mapping[tuple[str, bool], Said]:
    """Return what is said of every script."""
    wanted = [BUGS / f"{name}.py" for name in CHOSEN] + [CORRECT / f"{name}.py" for name in CHOSEN_CORRECT]
    return {(one.name, one.is_bug): one for one in said_of(wanted)}


@pytest.mark.parametrize("case", each_mistake())
def test_mistake_is_found_and_named(said: Mapping[tuple[str, bool], Said], case: Case) -> None:
    """That something is wrong, in which tensor, and why."""
    one = said[(case.name, True)]
    assert one.finds(case), one
    assert case.tensor in f"{one.tensor}\n{one.why}"
    assert case.cause in f"{one.why}\n{one.meaning}"


@pytest.mark.parametrize("name", CHOSEN_CORRECT)
def test_correct_script_gives_no_alarm(said: Mapping[tuple[str, bool], Said], name: str) -> None:
    """A correct training is called equal."""
    one = said[(name, False)]
    assert not one.is_false_alarm, one


def test_scripts_are_complete() -> None:
    """Forty mistakes or more, at most two unseen; each says where it is from, and its repaired script differs."""
    assert len(CASES) >= 40
    assert sum(bool(case.missed) for case in CASES.values()) <= MISSED
    assert {path.stem for path in BUGS.glob("*.py")} == set(CASES)
    for name, case in CASES.items():
        repository, _, number = case.thread.partition("#")
        text = (BUGS / f"{name}.py").read_text()
        assert f"https://github.com/{repository}/issues/{number}\n" in text
        assert (CORRECT / f"{name}.py").read_text().partition("import")[2] != text.partition("import")[2]


def test_page_has_the_score() -> None:
    """docs/prove.md shows the numbers that the other tests hold it to."""
    page = (HERE.parents[2] / "docs" / "prove.md").read_text("utf-8")
    named = [case for case in CASES.values() if not case.missed]
    assert f"{len(CASES)} mistakes: {len(named)} found, {len(named)} with the right tensor and cause\n" in page
    assert f"{len(list(CORRECT.glob('*.py')))} correct scripts: 0 false alarms\n" in page
    for kind in {case.kind for case in CASES.values()}:
        numbers = [sum(case.kind == kind for case in of) for of in (CASES.values(), named)]
        assert f"| {kind} | {numbers[0]} | {numbers[1]} |\n" in page


@pytest.mark.tier("all")  # so do those of the warm process
def test_the_command_says_the_same(tmp_path: Path) -> None:
    """What is measured from one warm process is what `echelon prove` prints."""
    done = prove(tmp_path, BUGS / "tensor_parallel_bias.py")
    assert done.returncode == 1, done.stderr
    assert "WRONG from step 1 on: output of Block.down differs by" in done.stdout
    assert CASES["tensor_parallel_bias"].cause in done.stdout


@pytest.mark.tier("all")  # the warm process has proved it too
def test_the_command_raises_no_false_alarm(tmp_path: Path) -> None:
    """A file that one rank writes and another reads after a barrier is no mistake."""
    done = prove(tmp_path, CORRECT / "read_while_written.py")
    assert done.returncode == 0, done.stderr


def prove(folder: Path, script: Path) -> "subprocess.CompletedProcess[str]":
    """Run `echelon prove` on two ranks."""
    return warm.run(["-m", "echelon", "prove", "-n", "2", "--steps", "12", str(script)], cwd=folder)


@pytest.mark.tier("all")
def test_file_that_one_rank_writes_while_another_reads(tmp_path: Path) -> None:
    """Also where the script fails of it, which is left to chance, the command says why."""
    done = subprocess.run(
        [sys.executable, "-m", "echelon", "prove", "-n", "2", str(BUGS / "read_while_written.py")],
        cwd=tmp_path, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 1, done.stderr
    assert (
        "rank 0 writes model.pt and rank 1 reads it, but no barrier or other collective separates the two"
        in done.stdout
    )
