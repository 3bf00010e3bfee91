"""A shell whose `python` is the one that runs the tests, as in a user's activated environment."""

import importlib.util
import json
import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.run.shell import Shell, opened_in

BESIDE = os.path.dirname(os.path.abspath(sys.executable))
PATH = f"{BESIDE}:{os.environ['PATH']}"
FOREIGN = ("ACCELERATE", "FSDP", "DS_", "HF_HOME", "XDG_CACHE")
FOR_MPI = {
    "OMPI_ALLOW_RUN_AS_ROOT": "1",  # as CI's containers do
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    "MPIR_CVAR_CH4_NETMOD": "ofi",  # under Slurm's pmi2 MPICH may hang with another: docs/launchers.md
}
MUST = os.environ.get("ECHELON_FRAMEWORKS") == "1"  # asked now: each test begins without such variables
SCRIPT = """
import json, os, sys
path = f"rank-{os.environ['RANK']}.json"
with open(path, "x") as file:
    json.dump({"environ": dict(os.environ), "argv": sys.argv[1:]}, file)
"""


def require(needs: str) -> None:
    """Skip a test where one of these programs or packages is not installed; `make frameworks` lets none be skipped."""
    for name in needs.split():
        if shutil.which(name, path=PATH) is None and importlib.util.find_spec(name) is None:
            where = "make horovod" if name == "horovodrun" else "make frameworks"
            is_missing = MUST and where == "make frameworks"
            (pytest.fail if is_missing else pytest.skip)(f"{name} is not installed: {where}")


def reports(folder: Path) -> dict[int, dict[str, Any]]:
    """Return what each rank of the run has written."""
    return {int(path.stem[5:]): json.loads(path.read_text()) for path in folder.glob("rank-*.json")}


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[Shell]:
    """Give a test its shell, with the script that reports what each rank is told."""
    with opened_in(tmp_path) as shell:
        shell.environ = {name: value for name, value in shell.environ.items() if not name.startswith(FOREIGN)}
        shell.environ |= {"PATH": PATH, **FOR_MPI}
        shell.script(SCRIPT)
        yield shell
