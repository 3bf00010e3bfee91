"""What is known of a run at one moment: its numbers, its nodes with their devices and ranks, worst first, and facts."""

from __future__ import annotations

from dataclasses import dataclass, field

ALIVE, ENDED, FAILED, LOST = "alive", "ended", "failed", "lost"


@dataclass(slots=True, kw_only=True)
class RankState:
    """A rank of the present attempt."""

    rank: int
    node: str = ""
    status: str = "waiting"
    """"waiting" for its start, "alive", "ended", "failed", or "lost" with its node."""
    steps: int = 0
    shares: dict[str, float] = field(default_factory=dict)
    """Part of a step → its share of the time since the sample before; empty: unknown."""
    line: str = ""
    """The line of the script in which it is, and what it calls there; empty: unknown."""
    loss: float | None = None
    peak_bytes: int | None = None
    """The most memory of its device, or else of its node."""
    excess: float = 0.0
    """The part by which its own time of a step exceeds that of the others; 0: no more than chance."""
    cause: str = ""
    """What a rank does that makes the others wait."""

    @property
    def busy(self) -> float | None:
        """The share of the time in which the rank did not wait or save; None: unknown."""
        if not self.shares:
            return None
        return max(0.0, 1.0 - sum(self.shares.get(part, 0.0) for part in ("data", "communication", "saves")))

    @property
    def trouble(self) -> tuple[int, float, float]:
        """How bad the rank stands, for a sort with the worst first."""
        order = {FAILED: 0, LOST: 0}.get(self.status, 1)
        busy = self.busy
        return order, -self.excess, busy if busy is not None else 2.0


@dataclass(slots=True, kw_only=True)
class DeviceState:
    """A device of a node; what is unknown is None."""

    number: int
    busy: float | None = None
    """In per cent, when it was looked at last, or else as a mean."""
    memory: float | None = None
    """The share of its memory that is used."""
    watts: float | None = None
    celsius: float | None = None
    megahertz: float | None = None
    throttled: str = ""


@dataclass(slots=True, kw_only=True)
class NodeState:
    """A node with its ranks."""

    name: str
    ranks: list[RankState] = field(default_factory=list)
    devices: list[DeviceState] = field(default_factory=list)
    is_lost: bool = False

    @property
    def trouble(self) -> tuple[int, float, float]:
        """How bad the node stands: as its worst rank."""
        return min((rank.trouble for rank in self.ranks), default=(2, 0.0, 2.0))


@dataclass(slots=True, kw_only=True)
class RunState:
    """A run at one moment."""

    name: str
    status: str
    """As `echelon runs` shows it."""
    began: float = 0.0
    now: float = 0.0
    attempt: int = 0
    num_ranks: int = 0
    steps: int = 0
    steps_per_second: float | None = None
    samples_per_second: float | None = None
    loss: float | None = None
    losses: list[float] = field(default_factory=list)
    """The newest losses, one a sample of the run."""
    rates: list[float] = field(default_factory=list)
    """The newest steps a second."""
    shares: dict[str, float] = field(default_factory=dict)
    """Part of a step → its share of the time, as a mean over the ranks."""
    nodes: list[NodeState] = field(default_factory=list)
    """In the order of their first ranks."""
    facts: list[str] = field(default_factory=list)
    """What the run has said, and its failures; the newest last."""

    @property
    def ranks(self) -> list[RankState]:
        return sorted((rank for node in self.nodes for rank in node.ranks), key=lambda rank: rank.rank)

    def worst_first(self) -> list[NodeState]:
        return sorted(self.nodes, key=lambda node: node.trouble)
