"""Good scripts are left in peace: those of this repository, none of which was written for the linter."""

import datetime
from pathlib import Path

import pytest
from tests.lint.linting import texts

from echelon.machines.load import load_shipped

ROOT = Path(__file__).parents[2]
BEFORE = datetime.date(2026, 7, 1)
"""When all machines of the batch scripts were still there."""
SCRIPTS = sorted([*ROOT.glob("tests/scripts/*.py"), *ROOT.glob("examples/*.py")])
JOBS = sorted(ROOT.glob("tests/plan/golden/*.sh"))
REFUSED = {
    # these are wrong on purpose, or short of what the rule misses
    "data_parallel.py": {"ECH517", "ECH520"},
    "hidden_process_group.py": {"ECH520"},
    "mentions_ddp.py": {"ECH520"},
}


UNKNOWN_CORES = {("hipergator-half-node-tasks.sh", "ECH128")}
"""The cores of a node of hpg-rtx6000 are not published, so the job asks for none."""


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.name)
def test_good_script_is_silent(path: Path) -> None:
    """No script that trains well on one device or on several is criticised."""
    assert [(each.code, each.line) for each in texts({path.name: path.read_text()}).findings] == []


@pytest.mark.parametrize("path", JOBS, ids=lambda path: path.name)
def test_planned_job_is_silent(path: Path) -> None:
    """No batch script that echelon itself plans is criticised on its own machine."""
    machine = next(name for name in load_shipped() if path.name.startswith(f"{name}-"))
    found = texts({path.name: path.read_text()}, machine=machine, today=BEFORE).findings
    told = [each for each in found if (path.name, each.code) not in UNKNOWN_CORES]
    assert [(each.code, each.line, each.message) for each in told] == []


@pytest.mark.parametrize("path", sorted(ROOT.glob("tests/scripts/refused/*.py")), ids=lambda path: path.name)
def test_refused_script_is_criticised_for_what_is_wrong_alone(path: Path) -> None:
    """A script that cannot be scaled is not therefore wrong."""
    found = texts({path.name: path.read_text()}).findings
    assert {each.code for each in found if each.severity != "note"} == REFUSED.get(path.name, set())
