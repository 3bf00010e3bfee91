"""Which tests run beside one another under pytest-xdist: each file as a whole, and the longest first.

All tests that need Slurm are one unit, for they share one cluster. A file whose tests share nothing says
`pytestmark = pytest.mark.apart`: each of its tests is a unit, or all that have one parameter "name". seconds.json
remembers how long each file took; `pytest --write-seconds` writes what it has just measured into it.
"""

import json
from collections import defaultdict
from pathlib import Path

import pytest

SECONDS = Path(__file__).with_name("seconds.json")
SLURM = "slurm"
"""The fixture that is the cluster, and the unit of all that use it."""
_measured: dict[str, float] = defaultdict(float)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Offer --write-seconds."""
    parser.addoption("--write-seconds", action="store_true", help=f"remember in {SECONDS.name} how long each file took")


@pytest.hookimpl(tryfirst=True)  # before pytest-xdist reads the units
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Put each test into its unit, and the longest unit first."""
    if not config.pluginmanager.hasplugin("xdist"):
        return
    seconds: dict[str, float] = json.loads(SECONDS.read_text())
    total: dict[str, float] = defaultdict(float)
    num_tests: dict[str, int] = defaultdict(int)
    for item in items:
        num_tests[_file(item.nodeid)] += 1
    for item in items:
        total[unit(item)] += seconds.get(_file(item.nodeid), 10.0) / num_tests[_file(item.nodeid)]
    items.sort(key=lambda item: (-total[unit(item)], unit(item)))
    for item in items:
        item.add_marker(pytest.mark.xdist_group(unit(item)))


def unit(item: pytest.Item) -> str:
    """Return the name of the tests that one process runs together with a test."""
    if SLURM in getattr(item, "fixturenames", ()):
        return SLURM
    if item.get_closest_marker("apart") is None:
        return _file(item.nodeid)
    params = item.callspec.params if isinstance(item, pytest.Function) and hasattr(item, "callspec") else {}
    return f"{_file(item.nodeid)} {params.get('name', item.name)}"


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Count the seconds of each file, also of those that other processes have run."""
    _measured[_file(report.nodeid)] += report.duration


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Write the seconds of the files that have run; those of others stay."""
    if session.config.getoption("write_seconds") and not hasattr(session.config, "workerinput"):
        known = {**json.loads(SECONDS.read_text()), **{file: round(spent, 1) for file, spent in _measured.items()}}
        kept = {file: known[file] for file in sorted(known) if (SECONDS.parents[1] / file).exists()}
        SECONDS.write_text(json.dumps(kept, indent=0) + "\n")


def _file(node_id: str) -> str:
    return node_id.partition("::")[0]
