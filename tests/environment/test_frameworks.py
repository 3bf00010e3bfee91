import json
import os
import subprocess
import sys

import pytest

from echelon.environment import frameworks
from echelon.environment.frameworks import RankPlace

PLACE = RankPlace(5, 8, 1, 4, 1, 2, "n1", 29400)
WORKERS = [f"n{rank // 4}:{20000 + rank}" for rank in range(8)]

DUMP = """
import json, os
names = {name: text for name, text in os.environ.items() if name not in json.loads(os.environ["BEFORE"])}
with open(os.path.join(os.environ["FOLDER"], os.environ["RANK"]), "w") as file:
    json.dump(names, file)
"""


def _torchrun(folder, num_ranks):
    script = folder / "dump.py"
    script.write_text(DUMP)
    environ = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
    environ.update(FOLDER=str(folder), BEFORE="", LC_ALL="C.UTF-8")
    environ["BEFORE"] = json.dumps([*environ])
    command = [sys.executable, "-m", "torch.distributed.run", f"--nproc-per-node={num_ranks}"]
    rendezvous = ["--rdzv-backend=c10d", "--rdzv-endpoint=127.0.0.1:0", "--rdzv-id=run7"]
    subprocess.run([*command, *rendezvous, str(script)], env=environ, check=True, capture_output=True)
    return [json.loads((folder / str(rank)).read_text()) for rank in range(num_ranks)]


def test_torch_variables_equal_those_of_torchrun(tmp_path):
    """A rank gets every key that torchrun sets, with its value, but for what names the meeting point."""
    pytest.importorskip("torch")
    for rank, theirs in enumerate(_torchrun(tmp_path, 2)):
        place = RankPlace(rank, 2, rank, 2, 0, 1, theirs["MASTER_ADDR"], int(theirs["MASTER_PORT"]))
        error_file = theirs["TORCHELASTIC_ERROR_FILE"]
        ours = frameworks.rank_variables(place, run_id="run7", error_file=error_file)
        assert theirs.pop("OMP_NUM_THREADS") == "1"
        assert theirs.pop("TORCHELASTIC_USE_AGENT_STORE") == "True"
        assert ours.pop("TORCHELASTIC_USE_AGENT_STORE") == "False"
        assert {name: ours.get(name) for name in theirs} == theirs


def test_rank_variables_of_all_frameworks():
    """The whole set of a rank in the middle, name by name."""
    variables = frameworks.rank_variables(PLACE, run_id="r", attempt=2, max_restarts=3)
    assert variables == {
        "RANK": "5", "LOCAL_RANK": "1", "GROUP_RANK": "1", "ROLE_RANK": "5", "ROLE_NAME": "default",
        "WORLD_SIZE": "8", "LOCAL_WORLD_SIZE": "4", "GROUP_WORLD_SIZE": "2", "ROLE_WORLD_SIZE": "8",
        "MASTER_ADDR": "n1", "MASTER_PORT": "29400",
        "TORCHELASTIC_RESTART_COUNT": "2", "TORCHELASTIC_MAX_RESTARTS": "3", "TORCHELASTIC_RUN_ID": "r",
        "TORCHELASTIC_USE_AGENT_STORE": "False", "TORCHELASTIC_ERROR_FILE": "",
        "TORCHELASTIC_SIGNALS_TO_HANDLE": "SIGTERM,SIGINT,SIGHUP,SIGQUIT",
        "TORCH_NCCL_ASYNC_ERROR_HANDLING": "1",
        "NODE_RANK": "1",
        "CROSS_RANK": "1", "CROSS_SIZE": "2", "LOCAL_SIZE": "4",
        "HOROVOD_RANK": "5", "HOROVOD_SIZE": "8", "HOROVOD_LOCAL_RANK": "1", "HOROVOD_LOCAL_SIZE": "4",
        "HOROVOD_CROSS_RANK": "1", "HOROVOD_CROSS_SIZE": "2",
        "JAX_COORDINATOR_ADDRESS": "n1:29401", "JAX_NUM_PROCESSES": "8", "JAX_PROCESS_ID": "5",
        "JAX_LOCAL_DEVICE_IDS": "1",
    }  # fmt: skip


def test_tensorflow_config_with_workers():
    """TF_CONFIG lists all ranks in order and says which one this is."""
    variables = frameworks.rank_variables(PLACE, run_id="r", workers=WORKERS)
    config = json.loads(variables["TF_CONFIG"])
    assert config == {"cluster": {"worker": WORKERS}, "task": {"type": "worker", "index": 5}}
    assert variables["JAX_COORDINATOR_ADDRESS"] == "n0:20000"


def test_tensorflow_config_of_more_ranks_than_a_variable_holds():
    """Ten thousand ranks have no TF_CONFIG: it would make every exec fail."""
    place = PLACE._replace(world_size=10_000)
    workers = [f"nid{rank:06}:29400" for rank in range(10_000)]
    assert "TF_CONFIG" not in frameworks.rank_variables(place, run_id="r", workers=workers)


def test_workers_that_are_not_one_per_rank():
    """A wrong number of workers is refused with both numbers."""
    with pytest.raises(ValueError, match="7 worker addresses are given for 8 ranks"):
        frameworks.rank_variables(PLACE, run_id="r", workers=WORKERS[:7])


def test_jax_of_one_rank_per_node():
    """A rank alone on its node drives all its devices."""
    place = RankPlace(1, 2, 0, 1, 1, 2, "fe80::1", 65535)
    variables = frameworks.rank_variables(place, run_id="r")
    assert "JAX_LOCAL_DEVICE_IDS" not in variables
    assert variables["JAX_COORDINATOR_ADDRESS"] == "[fe80::1]:65534"


def test_no_variable_of_mpi():
    """Nobody serves PMI here, so nothing says that somebody does."""
    names = frameworks.rank_variables(PLACE, run_id="r", workers=WORKERS)
    assert not [name for name in names if name.startswith(("OMPI_", "PMI", "PALS_", "MPI_", "SLURM_"))]


def test_merged_keeps_the_users_choice_and_not_an_old_rank():
    """TF_CONFIG of the user stays; RANK of an older world does not."""
    environ = {"TF_CONFIG": "{}", "TORCH_NCCL_ASYNC_ERROR_HANDLING": "3", "RANK": "0", "HOME": "/h"}
    merged = frameworks.merged(environ, frameworks.rank_variables(PLACE, run_id="r", workers=WORKERS))
    assert (merged["TF_CONFIG"], merged["TORCH_NCCL_ASYNC_ERROR_HANDLING"]) == ("{}", "3")
    assert (merged["RANK"], merged["HOME"]) == ("5", "/h")


def test_task_variables_equal_what_srun_says(recorded):
    """The rank of an agent reads from Slurm's variables what srun would have told a task in its place."""
    theirs = recorded("srun-2x8-rank9")
    agent = {
        **theirs, "SLURM_PROCID": "1", "SLURM_LOCALID": "0", "SLURM_NTASKS": "2", "SLURM_NPROCS": "2",
        "SLURM_STEP_NUM_TASKS": "2", "SLURM_TASKS_PER_NODE": "1(x2)", "SLURM_STEP_TASKS_PER_NODE": "1(x2)",
        "SLURM_NTASKS_PER_NODE": "1", "SLURM_GTIDS": "1",
    }  # fmt: skip
    place = RankPlace(9, 16, 1, 8, 1, 2, "nid005000", 20002)
    assert {**agent, **frameworks.task_variables(agent, place)} == theirs


def test_task_variables_of_uneven_nodes(recorded):
    """Counts that differ are given, and must fit the place."""
    theirs = recorded("srun-uneven-rank6")
    place = RankPlace(6, 7, 0, 1, 2, 3, "nid005000", 20004)
    task = frameworks.task_variables(theirs, place, ranks_per_node=[5, 1, 1])
    assert task.pop("SLURM_NTASKS_PER_NODE") == "1"
    assert {**theirs, **task} == theirs
    with pytest.raises(ValueError, match=r"\[1, 1, 1\] ranks per node"):
        frameworks.task_variables(theirs, place)


def test_task_variables_share_the_agents_cores(recorded):
    """SLURM_CPUS_PER_TASK of the agent is divided among its ranks."""
    agent = {**recorded("srun-2x8-rank9"), "SLURM_CPUS_PER_TASK": "56"}
    assert frameworks.task_variables(agent, PLACE)["SLURM_CPUS_PER_TASK"] == "14"


def test_task_variables_outside_of_slurm():
    """Without Slurm nobody pretends to be it."""
    assert frameworks.task_variables({"HOME": "/h"}, PLACE) == {}
