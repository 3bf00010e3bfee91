"""The variables that srun would set if it started one task per rank instead of one agent per node."""

from __future__ import annotations

from typing import TYPE_CHECKING

from . import digits
from .hostlist import compress_counts

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from .place import Place


def task_variables(environ: Mapping[str, str], place: Place, *, ranks_per_node: Sequence[int] = ()) -> dict[str, str]:
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
