"""The mistakes that guides and slides are known to have contained are found; their repaired versions are silent."""

import datetime
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.lint.linting import codes, texts

from echelon.lint import table

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib  # pytest itself needs it there

FOLDER = Path(__file__).parent
ROOT = FOLDER.parents[1]
CASES: dict[str, dict[str, Any]] = tomllib.loads((FOLDER / "mistakes.toml").read_text("utf-8"))
SEEN = {name: case for name, case in CASES.items() if "codes" in case}
UNSEEN = {name: case for name, case in CASES.items() if "unseen" in case}
BEFORE = datetime.date(2026, 7, 1)
"""When Puhti and Mahti were still there."""


@pytest.mark.parametrize("name", [name for name, case in SEEN.items() if "files" in case])
def test_mistake_is_found(name: str) -> None:
    """Each rule that the mistake breaks finds it."""
    case = SEEN[name]
    linted = texts(case["files"], machine=case.get("machine", ""), today=BEFORE)
    assert set(case["codes"]) <= codes(linted)


@pytest.mark.parametrize("name", SEEN)
def test_mistake_has_its_rules(name: str) -> None:
    """What is said to be found has a rule."""
    assert set(SEEN[name]["codes"]) <= set(table.CODES)


@pytest.mark.parametrize("name", [name for name, case in SEEN.items() if "repaired" in case])
def test_repaired_version_is_silent(name: str) -> None:
    """What was repaired has nothing left to be said of it."""
    case = SEEN[name]
    linted = texts(case["repaired"], machine=case.get("machine", ""), today=BEFORE)
    assert [(each.code, each.line, each.message) for each in linted.findings if each.severity != "note"] == []


@pytest.mark.parametrize("name", UNSEEN)
def test_mistake_that_cannot_be_read_stands_on_the_page(name: str) -> None:
    """What no rule finds is named on the page, with the reason."""
    page = (ROOT / "docs/lint.md").read_text("utf-8").partition("## What reading cannot see")[2]
    assert f"| {UNSEEN[name]['unseen']} |" in page
