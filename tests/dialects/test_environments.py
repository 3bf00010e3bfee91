"""Whichever launcher's line it is: the same layout gives each rank an environment of the same meaning."""

import json
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from tests.cluster import Cluster
from tests.run.shell import Shell

from echelon.environment import frameworks
from echelon.environment.frameworks import RankPlace

from .conftest import FOR_MPI, PATH, SCRIPT, reports

LINES = {
    "echelon run": "-n 2 train.py",
    "torchrun": "-- torchrun --nproc-per-node=2 train.py",
    "torch.distributed": "-- python -m torch.distributed.launch --nproc-per-node=2 train.py",
    "accelerate": "-- accelerate launch --num_processes 2 train.py",
    "deepspeed": "-- deepspeed --num_gpus 2 train.py",
    "mpirun": "-- mpirun -n 2 python train.py",
    "mpiexec": "-- mpiexec -n 2 python train.py",
    "horovodrun": "-- horovodrun -np 2 python train.py",
}
SLURM_LINES = {
    "echelon run": "-n 2 train.py",
    "srun": "-- srun --ntasks-per-node=2 python train.py",
    "srun torchrun": "-- srun --ntasks-per-node=1 torchrun --nnodes=2 --nproc-per-node=2 train.py",
    "accelerate": "-- accelerate launch --num_machines 2 --num_processes 4 train.py",
    "deepspeed": "-- deepspeed --num_nodes 2 --num_gpus 2 train.py",
    "mpirun": "-- mpirun -n 4 python train.py",
    "srun --mpi=pmi2": "-- srun --mpi=pmi2 -n 4 python train.py",
}
ANY_PORT = ("MASTER_PORT", "JAX_COORDINATOR_ADDRESS")
ANY_FILE = ("TORCHELASTIC_ERROR_FILE",)
ADDRESS = ("MASTER_ADDR",)


def names() -> list[str]:
    """Return every variable by which some framework finds its rank."""
    place = RankPlace(0, 4, 0, 2, 0, 2, "a", 1)
    return [*frameworks.rank_variables(place, run_id="", workers=["a:1"] * 4), "OMP_NUM_THREADS"]


def meaning(name: str, environ: Mapping[str, str]) -> str:
    """Return what a variable says, without what is chosen anew for every run."""
    value = environ.get(name, "-")
    if name == "TF_CONFIG" and value != "-":
        config = json.loads(value)
        return f"{config['task']['type']} {config['task']['index']} of {len(config['cluster']['worker'])}"
    if name in ANY_PORT:
        return "a port" if value.rpartition(":")[2].isdigit() else value
    return "a file" if name in ANY_FILE and value else value


def rank_meanings(found: Mapping[int, Mapping[str, Any]]) -> dict[int, dict[str, str]]:
    """Return the meaning of each rank's variables; what all ranks must share is checked here."""
    for name in (*ANY_PORT, *ADDRESS):
        assert len({report["environ"][name] for report in found.values()}) == 1, name
    of_rank_0 = found[0]["environ"].get("SLURMD_NODENAME", "127.0.0.1")  # another job may get other nodes
    meanings = {rank: {name: meaning(name, report["environ"]) for name in names()} for rank, report in found.items()}
    for says in meanings.values():
        assert says["MASTER_ADDR"] == of_rank_0
        says["MASTER_ADDR"] = "rank 0's node"
    return meanings


def table(meanings: Mapping[str, Mapping[int, Mapping[str, str]]]) -> str:
    """Return one line a variable and one column a launcher, with the values of all ranks."""
    rows = [["", *meanings]]
    for name in names():
        rows.append([name, *(",".join(ranks[rank][name] for rank in sorted(ranks)) for ranks in meanings.values())])
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return "\n".join("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in rows)


def _is_installed(line: str) -> bool:
    program = line.removeprefix("-- ").split()[0]
    return program not in ("mpirun", "mpiexec", "horovodrun") or shutil.which(program, path=PATH) is not None


def _check(meanings: Mapping[str, Mapping[int, Mapping[str, str]]], num_ranks: int) -> None:
    print(table(meanings))
    expected = meanings["echelon run"]
    assert sorted(expected) == list(range(num_ranks))
    assert [expected[rank]["RANK"] for rank in range(num_ranks)] == [str(rank) for rank in range(num_ranks)]
    for launcher, ranks in meanings.items():
        assert ranks == expected, launcher


@pytest.mark.framework
def test_two_ranks_here(shell: Shell) -> None:
    """torchrun's, Accelerate's, DeepSpeed's, MPI's and Horovod's lines for two ranks: the table has equal columns."""
    meanings = {}
    for launcher, line in LINES.items():
        if not _is_installed(line):
            continue
        done = shell.fork(*line.split())
        assert done.exit_code == 0, done.said
        meanings[launcher] = rank_meanings(reports(shell.folder))
        for path in shell.files("rank-*.json"):
            path.unlink()
    _check(meanings, 2)


@pytest.mark.framework
@pytest.mark.slurm
def test_two_nodes_of_slurm(slurm: Cluster, tmp_path: Path) -> None:
    """The same on two nodes with two ranks each, srun's own lines among them."""
    (tmp_path / "train.py").write_text(SCRIPT)
    environ = {**slurm.environ, **FOR_MPI, "PATH": f"{PATH}:{slurm.environ['PATH']}"}
    meanings = {}
    for launcher, line in SLURM_LINES.items():
        if not _is_installed(line):
            continue
        command = [sys.executable, "-m", "echelon", "run", *line.split()]
        options = ["--nodes=2", "--ntasks-per-node=2", "--gpus-per-node=2"]
        done = slurm.run("salloc", "--quiet", *options, *command, check=False, cwd=tmp_path, timeout=60, env=environ)
        assert done.returncode == 0, done.stderr
        meanings[launcher] = rank_meanings(reports(tmp_path))
        for path in tmp_path.glob("rank-*.json"):
            path.unlink()
    _check(meanings, 4)
