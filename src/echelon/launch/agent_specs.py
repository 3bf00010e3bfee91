"""The specification of the agents, derived from a plan."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

from echelon.launch.hangs import timeout_of
from echelon.node.agent_spec import AgentSpec
from echelon.node.connect import GONE_SECONDS
from echelon.spec import Plan

CONNECT_SECONDS = 60.0
MEET_SECONDS = 600.0  # people start these nodes by hand; torchrun waits as long


def spec(
    plan: Plan,
    addresses: Sequence[tuple[str, int]],
    secret: bytes,
    *,
    is_private: bool = False,
    looks: Mapping[str, Any] | None = None,
    first_life: int = 0,
) -> AgentSpec:
    """Return the part of a plan that agents read before they connect."""
    return AgentSpec(
        run_id=plan.run_id,
        addresses=list(addresses),
        argv=list(plan.argv),
        is_python=plan.is_python,
        preload=list(plan.preload),
        own=list(plan.own),
        folder=plan.folder,
        launch=plan.launch,
        visible=plan.visible,
        scale="" if plan.scale_options is None else plan.scale_options.to_json(),
        bind=plan.bind,
        reserved=list(plan.reserved_cores),
        settings=[(variable.name, variable.value, variable.is_folder) for variable in plan.variables],
        ranks_per_node=plan.ranks_per_node,
        environ=dict(plan.environ),
        max_restarts=plan.max_restarts,
        connect_seconds=MEET_SECONDS if plan.where == "meet" else CONNECT_SECONDS,
        refused_seconds=MEET_SECONDS if plan.where == "meet" else GONE_SECONDS,
        is_private_directory=is_private,
        forwards_signals=not plan.slurm_signals_ranks,
        secret=secret,
        stdin=f"/proc/{os.getpid()}/fd/0" if plan.stdin_rank >= 0 else "",
        stdin_rank=plan.stdin_rank,
        cpus_per_rank=plan.cpus_per_rank,
        rank_argument=plan.launcher.rank_argument if plan.launcher is not None else "",
        mpi=plan.launcher.mpi if plan.launcher is not None else "",
        store_address="127.0.0.1" if plan.num_nodes == 1 else "",
        hang_timeout=timeout_of(plan),
        is_step=plan.where == "slurm",
        serves_horovod=plan.serves_horovod,
        looks=dict(looks) if looks is not None else None,
        first_life=first_life,
    )
