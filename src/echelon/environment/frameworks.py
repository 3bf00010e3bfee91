"""The variables from which each framework learns the place of its rank: one function for each framework."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from . import digits
from .hostlist import compress_counts

# Linux limits one string of an environment to 128 KiB (MAX_ARG_STRLEN); exec would refuse a longer one.
_TF_CONFIG_BYTES = 100_000

# Defaults for the rank; the user's own values win, because none of these identifies the rank.
OF_NO_RANK = "TORCH_NCCL_ASYNC_ERROR_HANDLING"
"""The user's own value stays, as under torchrun: it does not identify a rank."""
_USERS_CHOICE = ("JAX_COORDINATOR_ADDRESS", "TF_CONFIG", OF_NO_RANK)
NOT_BY_MPI = {"HOROVOD_CONTROLLER": "MPI has not started this rank"}
"""For ranks that Horovod would train alone: 0.28.1 ends hvd.init() if the value is not "mpi" or "gloo"."""


class _Start(NamedTuple):
    """The place of a rank, and facts of its run."""

    place: RankPlace
    run_id: str
    attempt: int
    max_restarts: int
    workers: Sequence[str]
    error_file: str


def rank_variables(
    place: RankPlace,
    *,
    run_id: str,
    attempt: int = 0,
    max_restarts: int = 0,
    workers: Sequence[str] = (),
    error_file: str = "",
) -> dict[str, str]:
    """Return the variables by which every framework finds its rank.

    `workers` are the `host:port` of all ranks in order; without them TensorFlow gets no TF_CONFIG. `error_file` is the
    path to which `torch.distributed.elastic.errors.record` writes.
    """
    if workers and len(workers) != place.world_size:
        raise ValueError(f"{len(workers)} worker addresses are given for {place.world_size} ranks")
    start = _Start(place, run_id, attempt, max_restarts, workers, error_file)
    variables: dict[str, str] = {}
    for framework in _FRAMEWORKS:
        variables.update(framework(start))
    return variables


def merged(environ: Mapping[str, str], variables: Mapping[str, str]) -> dict[str, str]:
    """Return an environment with a rank's variables merged in; the user's own choices stay."""
    environment = {**environ, **variables}
    environment.update((name, environ[name]) for name in _USERS_CHOICE if name in environ)
    return environment


def _torch(start: _Start) -> dict[str, str]:
    # The names that torch 2.13's LocalElasticAgent._start_workers sets; TorchTitan and DDP scripts read these.
    place = start.place
    return {
        "RANK": str(place.rank),
        "LOCAL_RANK": str(place.local_rank),
        "GROUP_RANK": str(place.node_rank),
        "ROLE_RANK": str(place.rank),
        "ROLE_NAME": "default",
        "WORLD_SIZE": str(place.world_size),
        "LOCAL_WORLD_SIZE": str(place.local_world_size),
        "GROUP_WORLD_SIZE": str(place.num_nodes),
        "ROLE_WORLD_SIZE": str(place.world_size),
        "MASTER_ADDR": place.master_addr,
        "MASTER_PORT": str(place.master_port),
        "TORCHELASTIC_RESTART_COUNT": str(start.attempt),
        "TORCHELASTIC_MAX_RESTARTS": str(start.max_restarts),
        "TORCHELASTIC_RUN_ID": start.run_id,
        # Rank 0 serves its own store, on a port of this attempt; True would make it a client without a server.
        "TORCHELASTIC_USE_AGENT_STORE": "False",
        "TORCHELASTIC_SIGNALS_TO_HANDLE": "SIGTERM,SIGINT,SIGHUP,SIGQUIT",
        "TORCHELASTIC_ERROR_FILE": start.error_file,
        "TORCH_NCCL_ASYNC_ERROR_HANDLING": "1",
    }


def _lightning(start: _Start) -> dict[str, str]:
    # LightningEnvironment and Composer read NODE_RANK; torchrun's name for it is GROUP_RANK.
    return {"NODE_RANK": str(start.place.node_rank)}


def _deepspeed(start: _Start) -> dict[str, str]:
    # deepspeed.launcher.launch sets these beside torch's names.
    return {
        "CROSS_RANK": str(start.place.node_rank),
        "CROSS_SIZE": str(start.place.num_nodes),
        "LOCAL_SIZE": str(start.place.local_world_size),
    }


def _horovod(start: _Start) -> dict[str, str]:
    # Horovod itself asks MPI; scripts read these names.
    place = start.place
    return {
        "HOROVOD_RANK": str(place.rank),
        "HOROVOD_SIZE": str(place.world_size),
        "HOROVOD_LOCAL_RANK": str(place.local_rank),
        "HOROVOD_LOCAL_SIZE": str(place.local_world_size),
        "HOROVOD_CROSS_RANK": str(place.node_rank),
        "HOROVOD_CROSS_SIZE": str(place.num_nodes),
    }


def _tensorflow(start: _Start) -> dict[str, str]:
    if not start.workers:
        return {}
    import json  # only callers with workers reach this line, and they have loaded json already

    config = {"cluster": {"worker": list(start.workers)}, "task": {"type": "worker", "index": start.place.rank}}
    text = json.dumps(config, separators=(",", ":"))
    return {"TF_CONFIG": text} if len(text) < _TF_CONFIG_BYTES else {}


def _jax(start: _Start) -> dict[str, str]:
    # jax.distributed.initialize reads the address and the local devices; scripts read the two counts.
    place = start.place
    variables = {
        "JAX_COORDINATOR_ADDRESS": start.workers[0] if start.workers else _beside_master(place),
        "JAX_NUM_PROCESSES": str(place.world_size),
        "JAX_PROCESS_ID": str(place.rank),
    }
    if place.local_world_size > 1:
        # One rank per device; JAX lets a rank that is alone on its node use all devices.
        variables["JAX_LOCAL_DEVICE_IDS"] = str(place.local_rank)
    return variables


def _beside_master(place: RankPlace) -> str:
    """Return an address on rank 0's host beside torch's store, in case the script uses both."""
    host = f"[{place.master_addr}]" if ":" in place.master_addr else place.master_addr
    return f"{host}:{place.master_port + (1 if place.master_port < 65535 else -1)}"


# Accelerate, Transformers and Composer need no variables of their own: they read torch's.
# MPI's and PMI's names are missing: a launcher that sets them must also serve them.
_FRAMEWORKS = (_torch, _lightning, _deepspeed, _horovod, _tensorflow, _jax)


class RankPlace(NamedTuple):
    """The place of a rank, and the address of rank 0."""

    rank: int
    world_size: int
    local_rank: int
    local_world_size: int
    node_rank: int
    num_nodes: int
    master_addr: str
    """Host name or address of the node on which rank 0 runs."""
    master_port: int


def task_variables(
    environ: Mapping[str, str], place: RankPlace, *, ranks_per_node: Sequence[int] = ()
) -> dict[str, str]:
    """Return Slurm's variables for a rank whose agent is Slurm's task.

    Without `ranks_per_node` every node has as many ranks as this one.
    """
    if "SLURM_JOB_ID" not in environ:
        return {}
    counts = list(ranks_per_node) or [place.local_world_size] * place.num_nodes
    if sum(counts) != place.world_size or counts[place.node_rank] != place.local_world_size:
        raise ValueError(f"{counts} ranks per node do not give node {place.node_rank} its place {place}")
    first_rank = place.rank - place.local_rank
    per_node = compress_counts(counts)
    world_size = str(place.world_size)
    task = {
        "SLURM_PROCID": str(place.rank),
        "SLURM_LOCALID": str(place.local_rank),
        "SLURM_NODEID": str(place.node_rank),
        "SLURM_NTASKS": world_size,
        "SLURM_NPROCS": world_size,
        "SLURM_STEP_NUM_TASKS": world_size,
        "SLURM_TASKS_PER_NODE": per_node,
        "SLURM_STEP_TASKS_PER_NODE": per_node,
        "SLURM_NTASKS_PER_NODE": str(place.local_world_size),
        "SLURM_GTIDS": ",".join(str(first_rank + local) for local in range(place.local_world_size)),
    }
    if digits.is_number(environ.get("SLURM_CPUS_PER_TASK", "")):
        # The agent's task has the cores of all ranks of the node; data loaders read their number from this variable.
        cores = int(environ["SLURM_CPUS_PER_TASK"]) // place.local_world_size
        task["SLURM_CPUS_PER_TASK"] = str(max(1, cores))
    return task
