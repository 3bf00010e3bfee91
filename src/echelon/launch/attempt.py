"""One start of all ranks, as the supervisor tracks it."""

from __future__ import annotations

import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from echelon.launch import layout
from echelon.launch.crew import AgentConnection
from echelon.launch.failure import NEVER, Facts, Failure
from echelon.node.channel import Message
from echelon.spec import Plan


@dataclass(slots=True)
class Attempt:
    """The ranks that run and that failed, and the time at which the supervisor began to stop all ranks."""

    number: int
    began: float = 0.0
    alive: set[int] = field(default_factory=set)
    num_started: int = 0
    ended_well: dict[int, float] = field(default_factory=dict)
    """Rank → time of its end, by its node's clock, corrected."""
    called: dict[int, Message] = field(default_factory=dict)
    """Rank → its last collectives, once it has ended."""
    failures: list[Failure] = field(default_factory=list)
    is_running: bool = False
    stopped_at: float = NEVER

    def note_end(self, rank: int, report: Message) -> None:
        """Record the end of a rank, and which collectives it began last."""
        self.alive.discard(rank)
        self.called[rank] = report.get("called", {})

    def at_stop(self) -> Message:
        """Return what an agent has to know to stop its ranks: it asks them where they are, if one was left alone."""
        return {"attempt": self.number, "asks": any(failure.is_about_collectives for failure in self.failures)}

    def facts(self, *, stop_signal: int, positions: Mapping[int, str]) -> Facts:
        return Facts(ended_well=self.ended_well, called=self.called, stop_signal=stop_signal, positions=positions)


LOOPBACK = "127.0.0.1"


def describe(plan: Plan, members: Sequence[AgentConnection]) -> Message:
    """Return the facts of an attempt that every agent needs; `members` are in the order of their ranks."""
    has_names = plan.num_nodes > 1 and _resolves(
        members[-1].placement.node
    )  # a network resolves all of its nodes or none
    hosts = [_host_of(plan, member, has_names=has_names) for member in members]
    shares = [member.share for member in members if member.share is not None]
    workers = [f"{host}:{port}" for host, m in zip(hosts, members, strict=True) for port in m.ports[1:]]
    return {
        "name": plan.name,
        "run_id": plan.run_id,
        "master_addr": _master_host(plan, hosts[0]),
        "master_port": members[0].ports[0],
        "workers": workers,
        "store_port": members[0].store_port,
        "ranks_per_node": layout.ranks_per_node(shares),
        "show": "all" if plan.show is None else sorted(plan.show),
    }


def _master_host(plan: Plan, first_host: str) -> str:
    if plan.num_nodes > 1 and plan.where == "meet":
        return plan.rendezvous.rpartition(":")[0]
    return first_host


def _host_of(plan: Plan, member: AgentConnection, *, has_names: bool) -> str:
    if plan.num_nodes == 1:
        return LOOPBACK
    return member.placement.node if has_names else member.address


def _resolves(name: str) -> bool:
    try:
        socket.getaddrinfo(name, None)
    except OSError:
        return False  # only the scheduler knows this node name
    return True
