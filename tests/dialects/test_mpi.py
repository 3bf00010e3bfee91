"""mpirun's own start of echelon's agents, and Slurm's start of MPI programs, with a real MPI."""

import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tests.cluster import Cluster
from tests.run.shell import Shell, wait_until

from .conftest import FOR_MPI, PATH, require

SUM = """
from mpi4py import MPI
import os
world = MPI.COMM_WORLD
total = world.allreduce(world.rank + 1)
assert (world.rank, world.size) == (int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]))
print(f"{total} on {world.size}", flush=True)
"""
FAIL = "import os, sys, time\nsys.exit(5) if os.environ['RANK'] == '1' else time.sleep(60)\n"


@pytest.mark.framework
def test_ranks_of_mpirun_are_one_mpi_world(shell: Shell) -> None:
    """The numbers of MPI and of torch are the same, and each rank has its log."""
    require("mpirun mpi4py")
    shell.script(SUM)
    done = shell.run("--show", "0", "--", "mpirun", "-n", "2", "python", "train.py")
    assert done.exit_code == 0, done.said
    assert done.stdout == b"3 on 2\n"
    assert shell.log(1) == b"3 on 2\n"
    assert "echelon: mpirun: it starts its 2 ranks itself, each under an agent of echelon" in done.said


@pytest.mark.framework
def test_first_failure_ends_all_and_is_named(shell: Shell) -> None:
    """A rank's own exit code and number, not mpirun's noise; nothing stays."""
    require("mpirun")
    shell.script(FAIL)
    began = time.monotonic()
    done = shell.run("--", "mpirun", "-n", "2", "python", "train.py")
    assert (done.exit_code, time.monotonic() - began < 30) == (5, True), done.said
    assert "rank 1 on" in done.said
    assert "ended with exit code 5" in done.said


@pytest.mark.framework
def test_interrupt_reaches_the_ranks(shell: Shell) -> None:
    """Ctrl-C ends mpirun's ranks as it ends ours."""
    require("mpirun")
    shell.script("import time\nopen('up', 'w').close()\ntime.sleep(60)\n")
    with shell.start("--", "mpirun", "-n", "2", "python", "train.py") as process:
        wait_until(lambda: shell.files("up"))
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 130


@pytest.mark.framework
def test_words_that_mpirun_refuses_are_shown(shell: Shell) -> None:
    """What the launcher says when it cannot start, and nothing hangs."""
    require("mpirun")
    done = shell.run("--", "mpirun", "-n", "2", "-f", "/nowhere/hosts", "python", "train.py")
    assert done.exit_code == 2
    assert "echelon cannot read the host file /nowhere/hosts" in done.said
    missing = shell.run("--", "mpirun", "-n", "2", "--wdir", "/nowhere/at/all", "python", "train.py")
    assert missing.exit_code not in (0, None)
    assert "mpirun ended with exit code" in missing.said


def test_no_mpirun_names_the_extra(shell: Shell) -> None:
    """A machine without MPI."""
    shell.environ["PATH"] = "/usr/sbin:/sbin"
    done = shell.run("--", "mpirun", "-n", "2", sys.executable, "train.py")
    assert done.exit_code == 2
    assert "there is no program 'mpirun' on PATH" in done.said
    assert "echelon[mpi]" in done.said


PROTOCOLS = {"HYDRA": "pmi2", "Open MPI": "pmix"}
"""What an mpirun calls itself, and how Slurm starts the ranks of its library."""


def protocol() -> str:
    """Return the protocol of the MPI that is on PATH."""
    version = [shutil.which("mpirun", path=PATH) or "", "--version"]
    said = subprocess.run(version, capture_output=True, text=True, check=False).stdout
    return next(name for family, name in PROTOCOLS.items() if family in said)


@pytest.mark.framework
@pytest.mark.slurm
@pytest.mark.parametrize("line", ["mpirun -n 4", "srun --mpi={protocol} -n 4"])
def test_slurm_starts_one_mpi_world_over_two_nodes(slurm: Cluster, tmp_path: Path, line: str) -> None:
    """mpirun of the MPICH family becomes srun --mpi=pmi2, Open MPI's --mpi=pmix, where Slurm speaks it."""
    require("mpirun mpi4py")
    (tmp_path / "train.py").write_text(SUM)
    environ = {**slurm.environ, **FOR_MPI, "PATH": f"{PATH}:{slurm.environ['PATH']}"}
    words = line.format(protocol=protocol()).split()
    command = [sys.executable, "-m", "echelon", "run", "--", *words, "python", "train.py"]
    done = slurm.run(
        "salloc", "--quiet", "--nodes=2", "--ntasks-per-node=2", *command,
        check=False, cwd=tmp_path, timeout=90, env=environ,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (0, "10 on 4\n"), done.stderr
    assert f"srun --mpi={protocol()} starts its 4 ranks" in done.stderr
    assert "4 ranks on 2 nodes" in done.stderr


@pytest.mark.slurm
def test_a_protocol_that_slurm_does_not_have(slurm: Cluster, tmp_path: Path) -> None:
    """The ones that it has are listed."""
    environ = {**slurm.environ, **FOR_MPI, "PATH": f"{PATH}:{slurm.environ['PATH']}"}
    command = [sys.executable, "-m", "echelon", "run", "--", "srun", "--mpi=openmpi", "-n", "1", "true"]
    done = slurm.run("salloc", "--quiet", "--nodes=1", *command, check=False, cwd=tmp_path, timeout=60, env=environ)
    assert done.returncode == 2, done.stderr
    assert "srun --mpi=openmpi: this Slurm has" in done.stderr
    assert "pmi2" in done.stderr


@pytest.mark.framework
def test_ranks_that_only_echelon_counts(shell: Shell) -> None:
    """A line without a number: as many as `-n` says, or as there are devices, and mpirun is told."""
    require("mpirun")
    done = shell.run("-n", "2", "--show", "all", "--", "mpirun", "sh", "-c", "echo $RANK of $WORLD_SIZE")
    assert sorted(done.stdout.splitlines()) == [b"[0] 0 of 2", b"[1] 1 of 2"], done.said
    planned = shell.run("--dry-run", "--", "mpirun", "--verbose", "true", CUDA_VISIBLE_DEVICES="0,1,2")
    assert b"mpirun -n 3" in planned.stdout


MPIRUN = """#!/bin/sh
if [ "$1" = --version ]; then echo "a launcher that Slurm knows no protocol for"; exit; fi
shift 2
export OMPI_COMM_WORLD_SIZE=2 OMPI_COMM_WORLD_LOCAL_SIZE=2
for rank in 0 1; do
    OMPI_COMM_WORLD_RANK=$rank OMPI_COMM_WORLD_LOCAL_RANK=$rank "$@" &
done
wait
"""


@pytest.mark.slurm
def test_nodes_are_counted_where_mpirun_has_put_its_ranks(slurm: Cluster, tmp_path: Path) -> None:
    """Of two nodes it may use one: the last line says what was, not what was planned."""
    (tmp_path / "mpirun").write_text(MPIRUN)
    (tmp_path / "mpirun").chmod(0o755)
    command = [sys.executable, "-m", "echelon", "run", "--show", "all", "--", "mpirun", "-n", "2", "hostname"]
    environ = {**slurm.environ, "PATH": f"{tmp_path}:{slurm.environ['PATH']}"}
    done = slurm.run("salloc", "--quiet", "--nodes=2", *command, check=False, cwd=tmp_path, timeout=60, env=environ)
    assert (done.returncode, done.stdout.count("[")) == (0, 2), done.stderr
    assert "echelon: 2 ranks · " in done.stderr
