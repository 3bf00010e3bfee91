"""Jobs of each class in which a linter can be mistaken: all that is said of them is expected."""

import sys
from pathlib import Path
from typing import Any

import pytest
from tests.lint.linting import texts

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

TABLE: dict[str, Any] = tomllib.loads((Path(__file__).parent / "classes.toml").read_text("utf-8"))
PROGRAMS: dict[str, str] = TABLE.pop("programs")


@pytest.mark.parametrize("name", TABLE)
def test_what_is_said_of_a_class(name: str) -> None:
    """A correct job is silent, or has a warning that holds; a wrong one has its findings, and no others."""
    case = TABLE[name]
    sources = case["files"] | {program: PROGRAMS[program] for program in case.get("with", ())}
    findings = texts(sources, machine=case.get("machine", "")).findings
    assert [f"{each.severity} {each.code} {each.path}:{each.line}" for each in findings] == case["says"]


def test_error_is_never_said_of_a_correct_job() -> None:
    """The correct jobs are in the majority, and none of them has an error."""
    correct = [case for name, case in TABLE.items() if name.startswith("good: ")]
    assert len(correct) > 2 * len([name for name in TABLE if name.startswith("bad: ")])
    assert not any(said.startswith("error") for case in correct for said in case["says"])
