"""Command lines of public guides run verbatim after `echelon run --`."""

import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests import warm
from tests.cluster import Cluster
from tests.run.shell import Shell
from tests.tiers import some

from .conftest import FOR_MPI, PATH, SCRIPT, reports, require

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROWS: list[dict[str, Any]] = tomllib.loads((Path(__file__).parent / "lines.toml").read_text("utf-8"))["line"]
HERE = [row for row in ROWS if "allocation" not in row]
IN_SLURM = [row for row in ROWS if "allocation" in row]
CONFIG = """
compute_environment: LOCAL_MACHINE
deepspeed_config: {}
distributed_type: MULTI_GPU
fsdp_config: {}
machine_rank: 0
main_process_ip: null
main_process_port: null
main_training_function: main
mixed_precision: fp16
num_machines: 1
num_processes: 2
use_cpu: false
"""


def _cases(rows: list[dict[str, Any]], every: int) -> list[object]:
    """Return rows as parameters, one of `every` before the tier "all"; those with needs are for `make frameworks`."""
    with_needs = [pytest.param(row, id=_name(row), marks=pytest.mark.framework) for row in rows if "needs" in row]
    without = [pytest.param(row, id=_name(row)) for row in rows if "needs" not in row]
    return [*some(without, every), *with_needs]


def _name(row: dict[str, Any]) -> str:
    return re.sub(r"[^\w.:/]+", "-", f"{ROWS.index(row)}-{row['line'][:40]}")


def _arguments(row: dict[str, Any], rank: int, values: dict[str, str]) -> list[str]:
    """Return what the script must have got."""
    after = row["line"].partition("train.py")[2]
    for name, value in values.items():
        after = after.replace(f"${{{name}}}", value)
    first = [f"{row['argument']}{rank % row['ranks_per_node']}"] if "argument" in row else []
    return [*first, *shlex.split(after)]


def _check(row: dict[str, Any], folder: Path) -> None:
    per_node, num_nodes = row["ranks_per_node"], row.get("num_nodes", 1)
    found = reports(folder)
    assert sorted(found) == list(range(per_node * num_nodes))
    for rank, report in found.items():
        environ = report["environ"]
        names = ("WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_WORLD_SIZE", "GROUP_RANK", "LOCAL_RANK")
        assert [int(environ[name]) for name in names] == [
            per_node * num_nodes, per_node, num_nodes, *divmod(rank, per_node)
        ]  # fmt: skip
        assert report["argv"] == _arguments(row, rank, row.get("environment", {}))
        assert {name: environ.get(name) for name in row.get("sets", {})} == row.get("sets", {})
    assert len({report["environ"]["MASTER_PORT"] for report in found.values()}) == 1


@pytest.mark.parametrize("row", _cases(HERE, 2))
def test_line_starts_its_ranks_here(shell: Shell, row: dict[str, Any]) -> None:
    """The guide's own line after `echelon run --`: ranks, places, arguments; and one line says whose it is."""
    require(row.get("needs", ""))
    shell.script(CONFIG, "my_config_file.yaml")
    environ = {**row.get("environment", {}), "CUDA_VISIBLE_DEVICES": row.get("devices", "")}
    program = shell.folder.parent / "echelon"
    warm.write_program(program)
    command = f"{shlex.quote(str(program))} run -- {row['line']}"
    done = subprocess.run(
        ["bash", "-c", command], cwd=shell.folder, env={**shell.environ, **environ}, capture_output=True, text=True,
        timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert re.search(r"^echelon: [\w. ]+: (echelon|it) starts its (\d+ )?ranks?", done.stderr, re.MULTILINE)
    _check(row, shell.folder)


@pytest.mark.slurm
@pytest.mark.parametrize("row", _cases(IN_SLURM, 3))
def test_line_starts_its_ranks_in_an_allocation(slurm: Cluster, tmp_path: Path, row: dict[str, Any]) -> None:
    """The guide's own line inside of a real allocation: on all its nodes."""
    require(row.get("needs", ""))
    (tmp_path / "train.py").write_text(SCRIPT)
    command = f"{shlex.quote(sys.executable)} -m echelon run -- {row['line']}"
    environ = {**slurm.environ, **FOR_MPI, **row.get("environment", {}), "PATH": f"{PATH}:{slurm.environ['PATH']}"}
    done = slurm.run(
        "salloc", "--quiet", *row["allocation"].split(), "bash", "-c", command,
        check=False, cwd=tmp_path, timeout=120, env=environ,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    _check(row, tmp_path)


def test_enough_lines_are_here() -> None:
    """At least 20 different lines stand here as public guides print them, each with its source."""
    assert len({row["line"] for row in ROWS if row.get("verbatim", True)}) >= 20
    assert all(row["source"].startswith("https://") for row in ROWS)
