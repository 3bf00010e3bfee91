"""The scripts begin to run when the tests are known, beside those tests that mostly wait."""

import shutil
import tempfile
from pathlib import Path

import pytest

from .runs import Runs

_HERE = Path(__file__).parent
_begun: list[Runs] = []


def pytest_collection_finish(session: pytest.Session) -> None:
    """Plan the runs that the chosen tests need, in their order."""
    items = [item for item in session.items if item.path.parent == _HERE]
    if not items or session.config.option.collectonly:
        return
    runs = Runs(Path(tempfile.mkdtemp(prefix="scripts-")))
    _begun.append(runs)
    for item in items:
        params = getattr(getattr(item, "callspec", None), "params", {})
        if "num_ranks" in params:
            runs.plan(params["name"], 0, params["num_ranks"])
        elif "refused" in params:
            runs.plan(f"refused/{params['refused']}", 2)
        elif item.get_closest_marker("alone"):
            runs.plan(params.get("name") or item.get_closest_marker("alone").args[0], 0)


def pytest_sessionfinish() -> None:
    """Start no more of them, and leave nothing behind."""
    while _begun:
        runs = _begun.pop()
        runs.close()
        shutil.rmtree(runs.folder, ignore_errors=True)


@pytest.fixture(scope="session")
def runs() -> Runs:
    _begun[0].hurry()
    return _begun[0]
