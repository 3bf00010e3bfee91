"""Which tests run when, and beside which others, in a small suite of its own."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests import changed

ROOT = Path(__file__).parents[1]
SUITE = {
    "conftest.py": 'pytest_plugins = ["tests.schedule", "tests.tiers"]\n',
    "test_pure.py": "import pytest\nfrom tests.tiers import in_all, pick, some\n\n"
    "@pytest.mark.parametrize('n', some(range(6), 3))\ndef test_some(n): pass\n\n"
    "@pytest.mark.parametrize('n', [1, in_all(2)])\ndef test_case(n): pass\n\n"
    "@pytest.mark.parametrize('n', range(pick(1, all=2, soak=3)))\ndef test_number(n): pass\n\n"
    "@pytest.mark.tier('soak')\ndef test_long(): pass\n",
    "test_starts.py": "from tests.run import shell\n\ndef test_process(): pass\n",
}


@pytest.fixture
def suite(tmp_path: Path) -> Path:
    for name, text in SUITE.items():
        (tmp_path / name).write_text(text)
    return tmp_path


def collected(folder: Path, *words: str) -> list[str]:
    """Return the tests that pytest would run in a folder."""
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-q", "--collect-only", *words, "."]
    environ = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=folder, env=environ, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
    return [line.partition("::")[2] for line in done.stdout.splitlines() if "::" in line]


@pytest.mark.parametrize(
    ("tier", "expected"),
    [
        ("test", ["test_some[0]", "test_some[3]", "test_case[1]", "test_number[0]", "test_process"]),
        ("all", [*(f"test_some[{n}]" for n in range(6)), "test_case[1]", "test_case[2]", "test_number[0]",
                 "test_number[1]", "test_process"]),
    ],
)  # fmt: skip
def test_tier_has_its_cases(suite: Path, tier: str, expected: list[str]) -> None:
    """A marked test, the cases that some() and in_all() leave out, and the number of pick() belong to a later tier."""
    assert collected(suite, f"--tier={tier}") == expected


def test_quick_starts_nothing(suite: Path) -> None:
    """A file is left out if it imports what starts processes, also through another file of tests."""
    assert "test_process" not in collected(suite, "--tier=quick")
    assert "test_case[1]" in collected(suite, "--tier=quick")


SHARED = """
import pathlib, pytest

@pytest.fixture(scope="module")
def costly():
    with pathlib.Path("made").open("a") as file:
        file.write("x")

@pytest.mark.parametrize("number", range(20))
def test_with_it(costly, number): pass
"""


def test_file_is_run_by_one_process(suite: Path) -> None:
    """What a file makes once is made once, however many processes share the tests."""
    (suite / "test_shared.py").write_text(SHARED)
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-n", "2", "--dist", "loadgroup", "."]
    done = subprocess.run(
        command, cwd=suite, env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout
    assert (suite / "made").read_text() == "x"


CHANGES = {
    "src/echelon/lint/bash.py": ({"tests/lint/test_rules.py"}, {"tests/monitor/test_report.py"}),
    "src/echelon/units.py": ({"tests/plan/test_command.py"}, {"tests/checkpoint/test_store.py"}),
    "src/echelon/train/run.py": ({"tests/corpus/test_scripts.py"}, {"tests/lint/test_rules.py"}),
    "tests/run/shell.py": ({"tests/run/test_output.py", "tests/dialects/test_lines.py"}, {"tests/lint/test_rules.py"}),
    "docs/prove.md": ({"tests/test_docs.py"}, {"tests/run/test_output.py"}),
}


@pytest.mark.parametrize("path", CHANGES)
def test_change_chooses_its_tests(monkeypatch: pytest.MonkeyPatch, path: str) -> None:
    """The tests of a module, and of those that import it; of a helper of tests those that import it; of a page."""
    monkeypatch.setattr(changed, "_git", lambda *words: [path] if words[0] == "diff" else [])
    chosen, other = CHANGES[path]
    found = changed.chosen(f"before {path}")
    assert chosen <= found
    assert not other & found
