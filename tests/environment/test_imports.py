import subprocess
import sys
from pathlib import Path
from zipfile import ZipFile

import echelon

PACKAGE = Path(echelon.__file__).parent

# What `typing`, `os`, `signal` and `stat` bring along is allowed; what costs time or memory is not.
HEAVY = {
    "argparse", "asyncio", "ctypes", "dataclasses", "difflib", "inspect", "json", "logging", "pathlib",
    "multiprocessing", "random", "selectors", "shutil", "socket", "subprocess", "tempfile", "threading",
    "traceback", "unittest", "urllib", "numpy", "torch",
}  # fmt: skip

LOADED = """
import sys
before = set(sys.modules)
from echelon.environment import become, devices, frameworks, hostlist, surroundings, threads
become.rank_environment({"SLURM_JOB_ID": "7", "SLURM_STEP_ID": "0", "SLURM_PROCID": "1", "SLURM_LOCALID": "1",
    "SLURM_NODEID": "0", "SLURM_STEP_NUM_TASKS": "4", "SLURM_STEP_NUM_NODES": "2",
    "SLURM_STEP_TASKS_PER_NODE": "2(x2)", "SLURM_STEP_NODELIST": "n[1-2]"})
print(*sorted(set(sys.modules) - before))
"""


def _loaded(*options: str, path: Path = PACKAGE.parent) -> set[str]:
    program = f"import sys; sys.path.insert(0, {str(path)!r})\n{LOADED}"
    command = [sys.executable, *options, "-c", program]
    return set(subprocess.run(command, capture_output=True, text=True, check=True).stdout.split())


def test_modules_that_a_rank_costs():
    """Finding one's place imports nothing heavy: every node and every rank pays for it."""
    loaded = _loaded("-I", "-S")
    assert not loaded & HEAVY
    assert len([name for name in loaded if not name.startswith("echelon")]) <= 40


def test_nothing_else_of_echelon_is_imported():
    """The room needs only the words of vendors: it is shipped without the rest."""
    ours = {name for name in _loaded("-I") if name.startswith("echelon.")}
    assert {name.split(".")[1] for name in ours} == {"environment", "hardware"}


def test_room_works_from_a_zip(tmp_path):
    """Shipped as part of a zip, the room is the same."""
    archive = tmp_path / "node.pyz"
    with ZipFile(archive, "w") as zip_file:
        zip_file.write(PACKAGE / "__init__.py", "echelon/__init__.py")
        for room in ("environment", "hardware"):
            for module in sorted((PACKAGE / room).rglob("*.py")):
                zip_file.write(module, f"echelon/{module.relative_to(PACKAGE)}")
    assert "echelon.environment.become" in _loaded("-I", "-S", path=archive)
