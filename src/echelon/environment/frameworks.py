"""What each framework reads to know its rank: one function per framework."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from .place import Place

# One string of an environment may not exceed 128 KiB (MAX_ARG_STRLEN in Linux); exec would refuse them all.
_TF_CONFIG_BYTES = 100_000

# Set for the rank, but what the user chose is better: none of these says which rank this is.
OF_NO_RANK = "TORCH_NCCL_ASYNC_ERROR_HANDLING"
"""A user's own value stays, as under torchrun: it does not tell one rank from another."""
_USERS_CHOICE = ("JAX_COORDINATOR_ADDRESS", "TF_CONFIG", OF_NO_RANK)


class _Start(NamedTuple):
    """Hold the place of a rank and what is said of its run."""

    place: Place
    run_id: str
    attempt: int
    max_restarts: int
    workers: Sequence[str]
    error_file: str


def rank_variables(
    place: Place,
    *,
    run_id: str,
    attempt: int = 0,
    max_restarts: int = 0,
    workers: Sequence[str] = (),
    error_file: str = "",
) -> dict[str, str]:
    """Return the variables by which every framework finds its rank.

    `workers` are the `host:port` of all ranks in order; TensorFlow needs them, and without them it
    gets no TF_CONFIG. `error_file` is where `torch.distributed.elastic.errors.record` writes to.
    """
    if workers and len(workers) != place.world_size:
        raise ValueError(f"{len(workers)} worker addresses are given for {place.world_size} ranks")
    start = _Start(place, run_id, attempt, max_restarts, workers, error_file)
    variables: dict[str, str] = {}
    for framework in _FRAMEWORKS:
        variables.update(framework(start))
    return variables


def merged(environ: Mapping[str, str], variables: Mapping[str, str]) -> dict[str, str]:
    """Return an environment with a rank's variables in it, and the user's own choices kept."""
    environment = {**environ, **variables}
    environment.update((name, environ[name]) for name in _USERS_CHOICE if name in environ)
    return environment


def _torch(start: _Start) -> dict[str, str]:
    # The keys of torch 2.13's LocalElasticAgent._start_workers; TorchTitan and DDP scripts read these.
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
        # Rank 0 serves a store of its own, on a port of this attempt; True would make it a client of nobody.
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
    # Who the rank is; where they meet is said only to scripts that import Horovod, by horovod_variables.
    place = start.place
    return {
        "HOROVOD_RANK": str(place.rank),
        "HOROVOD_SIZE": str(place.world_size),
        "HOROVOD_LOCAL_RANK": str(place.local_rank),
        "HOROVOD_LOCAL_SIZE": str(place.local_world_size),
        "HOROVOD_CROSS_RANK": str(place.node_rank),
        "HOROVOD_CROSS_SIZE": str(place.num_nodes),
    }


def horovod_variables(
    environ: Mapping[str, str], place: Place, *, node: str, port: int, token: str, interface: str
) -> dict[str, str]:
    """Return where Horovod's ranks meet, as horovodrun would say it; the user's own choices stay.

    `port` is that of the store on rank 0's node, which answers those who say `token`; `interface` is the one by which
    this node reaches the others.
    """
    choices = {"HOROVOD_CPU_OPERATIONS": "gloo", "HOROVOD_GLOO_IFACE": interface}
    return {
        # Horovod appends ":PORT/SCOPE/KEY" to this, so that the port stands twice (horovod/common/gloo/http_store.cc)
        "HOROVOD_GLOO_RENDEZVOUS_ADDR": f"{place.master_addr}:{port}/{token}",
        "HOROVOD_GLOO_RENDEZVOUS_PORT": str(port),
        "HOROVOD_CONTROLLER": "gloo",
        # ranks that say the same share a node, so two agents on one machine must not
        "HOROVOD_HOSTNAME": f"{node}.{place.node_rank}",
        **{name: environ.get(name, value) for name, value in choices.items() if environ.get(name, value)},
    }


def _tensorflow(start: _Start) -> dict[str, str]:
    if not start.workers:
        return {}
    import json  # only who has workers to name comes here, and it has json already

    config = {
        "cluster": {"worker": list(start.workers)},
        "task": {"type": "worker", "index": start.place.rank},
    }
    text = json.dumps(config, separators=(",", ":"))
    return {"TF_CONFIG": text} if len(text) < _TF_CONFIG_BYTES else {}


def _jax(start: _Start) -> dict[str, str]:
    # jax.distributed.initialize reads the address and the local devices; scripts read the two numbers.
    place = start.place
    variables = {
        "JAX_COORDINATOR_ADDRESS": start.workers[0] if start.workers else _beside_master(place),
        "JAX_NUM_PROCESSES": str(place.world_size),
        "JAX_PROCESS_ID": str(place.rank),
    }
    if place.local_world_size > 1:
        # One rank per device; a rank alone on its node drives all devices, which is JAX's own way.
        variables["JAX_LOCAL_DEVICE_IDS"] = str(place.local_rank)
    return variables


def _beside_master(place: Place) -> str:
    """Return an address of rank 0 that torch's store, should the script use both, does not listen on."""
    host = f"[{place.master_addr}]" if ":" in place.master_addr else place.master_addr
    return f"{host}:{place.master_port + (1 if place.master_port < 65535 else -1)}"


# Accelerate, Transformers and Composer need nothing further: their state is read from torch's names.
# MPI's and PMI's names are not among them: who sets those must also serve them.
_FRAMEWORKS = (_torch, _lightning, _deepspeed, _horovod, _tensorflow, _jax)
