"""`echelon submit -- torchrun …`: the line is read before the job waits in a queue, and says how much is booked."""

import json
import re
import subprocess
from pathlib import Path

import pytest
from tests import warm
from tests.cluster import Cluster
from tests.run.shell import Shell

from .conftest import SCRIPT, reports

LUMI = ["--machine", "lumi", "--account", "project_465000001", "--time", "1h", "--dry-run"]


def submit(shell: Shell, line: str, *options: str) -> subprocess.CompletedProcess[str]:
    """Print the script of a line after `echelon submit --`, on a machine with 8 devices a node."""
    words = ["-m", "echelon", "submit", *LUMI, *options, "--", *line.split()]
    return warm.run(words, cwd=shell.folder, environ=shell.environ)


def booked(script: str) -> tuple[int, int]:
    """Return the nodes, and the ranks on each, of a batch script."""
    nodes, ranks = re.search(r"--nodes=(\d+)", script), re.search(r"--nproc-per-node=(\d+)", script)
    assert nodes, script
    assert ranks, script
    return int(nodes[1]), int(ranks[1])


@pytest.mark.parametrize(
    ("line", "options", "expected"),
    [
        ("torchrun --nnodes=2 --nproc-per-node=4 train.py", [], (2, 4)),
        ("torchrun --nproc-per-node=4 train.py", [], (1, 4)),
        ("torchrun --nproc-per-node=4 train.py", ["--gpus", "8"], (2, 4)),
        ("torchrun --nproc-per-node=4 train.py", ["--nodes", "3"], (3, 4)),
        ("torchrun --nproc-per-node=gpu train.py", ["--nodes", "2"], (2, 8)),
        ("torchrun --nnodes=1:4 --nproc-per-node=8 train.py", ["--nodes", "2"], (2, 8)),
        ("torchrun --nnodes=2 train.py", ["--gpus", "8"], (2, 4)),
        ("python -m torch.distributed.run --nnodes 2 --nproc_per_node 8 -m json.tool", [], (2, 8)),
        ("accelerate launch --multi_gpu --num_machines 2 --num_processes 16 train.py", [], (2, 8)),
        ("accelerate launch --num_processes 4 train.py", ["--nodes", "2"], (2, 2)),
        ("deepspeed --num_nodes 2 --num_gpus 8 train.py --deepspeed", [], (2, 8)),
        ("deepspeed --include localhost:0,1 train.py", [], (1, 2)),
        ("srun --nodes=2 --ntasks-per-node=8 python train.py", [], (2, 8)),
        ("mpirun -n 16 -ppn 8 python train.py", [], (2, 8)),
        ("mpirun -n 16 python train.py", [], (2, 8)),
        ("horovodrun -np 8 python train.py", [], (1, 8)),
        ("python train.py", ["--gpus", "2"], (1, 2)),
    ],
)  # fmt: skip
def test_numbers_of_the_line_are_booked(shell: Shell, line: str, options: list[str], expected: tuple[int, int]) -> None:
    """Ranks and nodes are the line's; what it leaves open, the options say; the job runs the very line."""
    done = submit(shell, line, *options)
    assert done.returncode == 0, done.stderr
    assert booked(done.stdout) == expected
    assert done.stdout.rstrip().endswith(f"-- {line}")
    assert "#SBATCH --job-name=torchrun" not in done.stdout


@pytest.mark.parametrize(
    ("line", "options", "parts"),
    [
        ("torchrun --nnodes=2 --nproc-per-node=4 train.py", ["--gpus", "16"],
         ("--gpus 16", "torchrun --nnodes=2 --nproc-per-node=4 starts 8 ranks", "--gpus 8")),
        ("torchrun --nnodes=2 --nproc-per-node=4 train.py", ["--nodes", "3"], ("--nodes 3", "--nnodes=2", "--nodes 2")),
        ("torchrun --nproc-per-node=3 train.py", ["--gpus", "8"], ("--gpus 8", "3 ranks per node", "--gpus 6")),
        ("accelerate launch --num_processes 16 train.py", ["--gpus", "8"], ("--gpus 8", "16 ranks", "--gpus 16")),
        ("mpirun -n 8 -ppn 8 python train.py", ["--nodes", "2"], ("-n 8", "8 on each of 2 nodes make 16")),
        ("mpirun -n 4 -H a,b python train.py", [], ("names a, b", "Slurm chooses the nodes of a job", "--nodes 2")),
        ("deepspeed --include localhost:0,2 train.py", [], ("devices 0,2", "numbers them from 0", "--gpus 2")),
        ("horovodrun -np 16 python train.py", [], ("2 nodes by ssh", "without it", "train.py")),
        ("torchrun --nproc-per-node=gpu train.py", [], ("--gpus or --nodes is required",)),
        ("torchrun --nproc-per-node=8 trian.py", [], ("trian.py", "train.py")),
        ("torchrun --nproc-per-nod=8.5 train.py", [], ("8.5",)),
        ("torchrun --no-such-option train.py", [], ("--no-such-option",)),
        ("srun --ntasks-per-node=4 torchrun --nproc-per-node=4 train.py", [], ("two launchers",)),
    ],
)  # fmt: skip
def test_what_disagrees_does_not_wait_in_a_queue(
    shell: Shell, line: str, options: list[str], parts: tuple[str, ...]
) -> None:
    """The job would be refused when it starts, perhaps days later."""
    done = submit(shell, line, *options)
    assert done.returncode == 2, done.stdout
    assert "Traceback" not in done.stderr
    assert "  hint: " in done.stderr
    assert all(part in done.stderr for part in parts), done.stderr
    assert not shell.files("echelon-runs")


@pytest.mark.parametrize("line", ["torchrun --nproc-per-node=2 t.py", "srun -n 2 python t.py", "python t.py"])
def test_what_would_fail_in_every_rank(shell: Shell, line: str) -> None:
    """What `echelon run` looks for in the script before it starts it, is looked for here too."""
    shell.script("import lightning as L\nL.Trainer(accelerator='gpu', devices=4)\n", "t.py")
    shell.script("", "packages/lightning/__init__.py")
    shell.environ["PYTHONPATH"] += f":{shell.folder}/packages"
    done = submit(shell, line, *(["--gpus", "2"] if line.startswith("python") else []))
    if line.startswith("python"):
        assert done.returncode == 0, done.stderr  # any program, which is not read
        return
    assert done.returncode == 2
    assert "t.py, line 2: Trainer(devices=4) does not match this run, which has 2 ranks on each node" in done.stderr


def test_a_plain_script_of_a_line(shell: Shell) -> None:
    """torchrun's line becomes the guides' own; what another launcher tells its ranks would be lost, and is refused."""
    done = submit(shell, "torchrun --nnodes=2 --nproc-per-node=8 train.py --epochs 3", "--plain")
    assert done.returncode == 0, done.stderr
    assert re.search(r"torchrun .*--nproc-per-node=8 .*train.py --epochs 3", done.stdout)
    assert "echelon run" not in done.stdout
    done = submit(shell, "deepspeed --num_gpus 8 train.py", "--plain")
    assert done.returncode == 2
    assert "a plain script cannot do everything that deepspeed does: --local_rank=K for each rank" in done.stderr
    done = submit(shell, "torchrun --nproc-per-node=8 --max-restarts=2 train.py", "--plain")
    assert "a plain script cannot do everything that torchrun does: --max-restarts=2" in done.stderr


def test_pool_of_a_job(shell: Shell) -> None:
    """It starts before the run; a plain script has none."""
    shell.script("")
    words = ["-m", "echelon", "submit", *LUMI, "--gpus", "8", "--pool"]
    lines = warm.run([*words, "train.py"], cwd=shell.folder, environ=shell.environ).stdout.splitlines()
    assert " -m echelon pool start  # " in lines[-2]
    assert " -m echelon run --run-dir " in lines[-1]
    refused = warm.run([*words, "--plain", "train.py"], cwd=shell.folder, environ=shell.environ)
    assert "a plain script cannot use --pool" in refused.stderr


@pytest.mark.slurm
def test_a_line_runs_in_its_job(slurm: Cluster, tmp_path: Path) -> None:
    """Booked by its own numbers, and each rank gets its place on two nodes of a real Slurm."""
    (tmp_path / "train.py").write_text(SCRIPT)
    environ = {**slurm.environ, "XDG_CONFIG_HOME": str(tmp_path / "home")}
    for words in (
        ["machines", "learn"],
        ["submit", "--time", "5", "--wait", "--json", "--", "torchrun", "--nnodes=2", "--nproc-per-node=2", "train.py"],
    ):
        done = warm.run(["-m", "echelon", *words], cwd=tmp_path, environ=environ, timeout=150)  # fmt: skip
        assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["job_id"]
    names = ("WORLD_SIZE", "GROUP_RANK", "LOCAL_RANK")
    found = {rank: [report["environ"][name] for name in names] for rank, report in reports(tmp_path).items()}
    assert found == {rank: ["4", str(rank // 2), str(rank % 2)] for rank in range(4)}
