"""Decide which agent starts which ranks, once all agents have reported their nodes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from echelon.errors import RunError, UsageError
from echelon.node.channel import Message
from echelon.plan.shape import refuse_uneven_shards
from echelon.spec import Plan
from echelon.units import counted


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentPlacement:
    """An agent's description of itself."""

    agent_index: int
    node: str
    node_rank: int
    first_local_rank: int
    num_ranks: int
    num_devices: int
    num_cores: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentShare:
    """The ranks of one agent."""

    agent_index: int
    node: str
    node_rank: int
    num_nodes: int
    first_rank: int
    num_ranks: int
    local_world_size: int
    world_size: int

    def message(self) -> Message:
        names = ("node_rank", "num_nodes", "first_rank", "local_world_size", "world_size")
        return {name: getattr(self, name) for name in names}

    @property
    def ranks(self) -> range:
        return range(self.first_rank, self.first_rank + self.num_ranks)


def seat_of(message: Message) -> AgentPlacement:
    names = ("agent_index", "node", "node_rank", "first_local_rank", "num_ranks", "num_devices", "num_cores")
    return AgentPlacement(**{name: message[name] for name in names})


def agent_shares(plan: Plan, placements: Sequence[AgentPlacement]) -> list[AgentShare]:
    """Return the shares of these agents, in their order; raise EchelonError if the plan forbids them."""
    refuse_too_many_ranks(plan, placements)
    refuse_too_many_cpus(plan, placements)
    shares = divide(placements)
    refuse_other_counts(plan, shares)
    if plan.scale_options is not None:
        refuse_uneven_shards(plan.scale_options.num_shards, shares[0].world_size)
    return shares


def divide(placements: Sequence[AgentPlacement]) -> list[AgentShare]:
    """Number the nodes, and the ranks node by node; return the shares in the order of the agents."""
    ordered = sorted(placements, key=lambda placement: placement.agent_index)
    per_node: dict[int, int] = {}
    for placement in ordered:
        per_node[placement.node_rank] = per_node.get(placement.node_rank, 0) + placement.num_ranks
    world_size = sum(per_node.values())
    places = {node_rank: place for place, node_rank in enumerate(sorted(per_node))}  # node ranks may have gaps
    shares = []
    first_rank = 0
    for placement in ordered:
        shares.append(
            AgentShare(
                agent_index=placement.agent_index,
                node=placement.node,
                node_rank=places[placement.node_rank],
                num_nodes=len(per_node),
                first_rank=first_rank,
                num_ranks=placement.num_ranks,
                local_world_size=per_node[placement.node_rank],
                world_size=world_size,
            )
        )
        first_rank += placement.num_ranks
    return shares


def ranks_per_node(shares: Sequence[AgentShare]) -> list[int]:
    counts = {share.node_rank: share.local_world_size for share in shares}
    return [counts[node_rank] for node_rank in sorted(counts)]


def refuse_other_counts(plan: Plan, shares: Sequence[AgentShare]) -> None:
    """Raise RunError if nodes have other numbers of tasks than the plan, as may happen when cores are short."""
    if plan.launcher is not None and plan.launcher.is_step:
        return  # mpirun places its ranks as it likes
    for share in shares:
        if plan.launch == "tasks" and share.local_world_size != plan.ranks_per_node:
            raise RunError(
                f"Slurm started {share.local_world_size} tasks on {share.node}, but the plan has {plan.ranks_per_node}",
                hint=f"allocate a core for each: salloc --ntasks-per-node={plan.ranks_per_node} …   or --launch warm",
            )


def refuse_too_many_ranks(plan: Plan, placements: Sequence[AgentPlacement]) -> None:
    """Raise UsageError if a node has fewer devices than ranks, unless --share-devices is given."""
    if plan.share_devices:
        return
    for placement in placements:
        wanted = plan.ranks_per_node
        if 0 < placement.num_devices < wanted:
            raise UsageError(
                f"you asked for {wanted} ranks per node, but {placement.node} has "
                f"{counted(placement.num_devices, 'device')}",
                hint=f"echelon run -n {placement.num_devices} …   or, to let ranks share devices: --share-devices",
            )


def refuse_too_many_cpus(plan: Plan, placements: Sequence[AgentPlacement]) -> None:
    """Raise UsageError if the ranks of a node would need more CPUs than it has."""
    per_rank = plan.cpus_per_rank
    for placement in placements:
        num_ranks = plan.ranks_per_node or placement.num_ranks
        if per_rank * num_ranks > placement.num_cores:
            most = max(1, placement.num_cores // num_ranks)
            raise UsageError(
                f"--cpus-per-task {per_rank}: {num_ranks} ranks need {per_rank * num_ranks} CPUs, but "
                f"{placement.node} has {placement.num_cores} for them",
                hint=f"--cpus-per-task {most}",
            )


def missing(plan: Plan, placements: Sequence[AgentPlacement], waited_seconds: float) -> RunError:
    """Return the error that names the nodes that have not joined."""
    came = {placement.node for placement in placements}
    absent = [node for node in plan.nodes if node not in came]
    return RunError(
        f"{len(came)} of {plan.num_nodes} nodes came within {waited_seconds:.0f} s; "
        f"missing: {', '.join(absent) or 'others, which are started by hand'}"
    )
