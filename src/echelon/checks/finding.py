"""The nouns of checks: a finding, a check, and the purpose of the nodes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

from echelon.machines.machine import Network, NodeType, Reference
from echelon.node.survey.nouns import Survey


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """A checked fact."""

    severity: str
    """One of `spec.severity`."""
    message: str
    """What is wrong, without the node's name: the report joins nodes with equal messages."""
    evidence: str = ""
    """Where the fact was seen, with the values."""
    remedy: str
    """A command to paste, or an action."""
    source: str = ""
    """The source of the statement."""
    check: str = ""
    node: str = ""
    """Empty: the finding concerns several nodes together."""


error = partial(Finding, severity="error")
warning = partial(Finding, severity="warning")
note = partial(Finding, severity="note")


def leave_out(node: str) -> str:
    return f"leave the node out and tell the support: --exclude={node}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """The purpose of the nodes: which run they are checked for."""

    num_nodes: int = 1
    ranks_per_node: int = 0
    """0: one rank for each visible device, or one rank on a node without devices."""
    devices_by_node: Mapping[str, int] = field(default_factory=dict)
    """The devices that the job was given on each node, if the scheduler tells."""
    in_allocation: bool = False
    whole_nodes: bool = False
    """Whether no other job uses the nodes: then they must match the machine's file."""
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
        return self.ranks_per_node or len(survey.devices.visible) or survey.devices.num_claimed or 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """A check of a single node; it is skipped when a part in `needs` did not answer."""

    name: str
    question: str
    needs: tuple[str, ...]
    look: Callable[[Survey, Wanted], Iterator[Finding]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """A check that compares all nodes."""

    name: str
    question: str
    look: Callable[[Sequence[Survey], Wanted], Iterator[Finding]]
