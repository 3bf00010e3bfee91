"""What a check finds, what a check is, and what is wanted of the nodes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from echelon.machines.machine import Network, NodeType, Reference
from echelon.node.survey.nouns import Survey


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """A checked fact."""

    severity: str
    """One of `spec.severity`."""
    message: str
    """What is wrong, without the node's name: nodes with the same words are told together."""
    evidence: str = ""
    """Where it was seen, with the values."""
    remedy: str
    """Something to paste or to do."""
    source: str = ""
    """Who says so."""
    check: str = ""
    node: str = ""
    """Empty: it concerns the nodes together."""


def leave_out(node: str) -> str:
    """Return the remedy for a node that is itself at fault."""
    return f"leave the node out and tell the support: --exclude={node}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What the nodes are for."""

    num_nodes: int = 1
    ranks_per_node: int = 0
    """0: one for each visible device, one where there is none."""
    devices_by_node: Mapping[str, int] = field(default_factory=dict)
    """What the job was given, where its scheduler says so."""
    in_allocation: bool = False
    whole_nodes: bool = False
    """Whether the nodes are ours alone: then they must have what the machine's file says."""
    machine: str = ""
    kind: NodeType | None = None
    network: Network | None = None
    references: tuple[Reference, ...] = ()
    provided: frozenset[str] = frozenset()
    """Variables that echelon sets in every rank of this machine."""
    binds: tuple[str, ...] = ()
    """Paths that the machine's containers must show."""
    known_variables: tuple[str, ...] = ()
    renamed_variables: Mapping[str, str] = field(default_factory=dict)
    now: float = 0.0

    def ranks_on(self, survey: Survey) -> int:
        """Return how many ranks a node will have."""
        return self.ranks_per_node or len(survey.devices.visible) or survey.devices.num_claimed or 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One check of one node: it is made where all the parts that it needs have answered."""

    name: str
    needs: tuple[str, ...]
    look: Callable[[Survey, Wanted], Iterator[Finding]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """One check of all nodes together."""

    name: str
    look: Callable[[Sequence[Survey], Wanted], Iterator[Finding]]
