"""The environment that all ranks of this node share."""

import os
from typing import Dict, Mapping

from ..environment import threads
from ..environment.slurm_agent import job_id
from . import memory_folder, order, private, sweep
from .agent_spec import AgentSpec
from .placement import Placement


def surroundings_of_ranks(spec: AgentSpec, placement: Placement, mark: str, memory: str) -> Dict[str, str]:
    """Return the agent's environment with the run's and the machine's variables; the user's own values stay."""
    environ = dict(os.environ)
    environ.update(spec.environ)
    environ[sweep.MARK] = mark
    environ[order.FILE] = order.path(mark)
    environ[memory_folder.VARIABLE] = memory if environ.get(memory_folder.VARIABLE, memory) else ""  # "" asks for none
    if spec.scale:
        environ["ECHELON_SCALE"] = spec.scale
        environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")  # DDP's warnings would be about echelon's use of it
    for name, value, is_folder in spec.settings:
        if name not in environ:
            filled = _filled(value, placement, environ)
            if "$" not in filled and (not is_folder or _make(filled)):
                environ[name] = filled
    return environ


def num_threads(placement: Placement, num_cores: int, cpus_per_rank: int) -> int:
    """Return OMP_NUM_THREADS: the cores that a rank is bound to, or its share of the allowed cores."""
    share = cpus_per_rank or threads.omp_num_threads(placement.num_cores, placement.local_world_size)
    return min(share, num_cores) if num_cores else share


def _filled(value: str, placement: Placement, environ: Mapping[str, str]) -> str:
    if "{user}" in value:
        value = value.replace("{user}", _user(environ))
    value = value.replace("{job_id}", job_id(environ) or str(os.getppid()))
    return os.path.expandvars(value.replace("{node_rank}", str(max(placement.node_rank, 0))))


def _user(environ: Mapping[str, str]) -> str:
    """Return the user's name, or the number: a container may lack the name."""
    return environ.get("USER") or str(os.getuid())


def _make(folder: str) -> bool:
    """Create a folder and return whether it is the user's own: code is run from some folders, and /tmp is shared."""
    try:
        os.makedirs(folder, mode=0o700, exist_ok=True)
        return not os.path.islink(folder) and private.is_own(folder)
    except OSError:
        return False
