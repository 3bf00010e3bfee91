"""One start of all ranks, as the supervisor keeps account of it."""

from __future__ import annotations

from dataclasses import dataclass, field

from echelon.launch.failure import NEVER, Failure


@dataclass(slots=True)
class Attempt:
    """Who is alive, who failed, and since when all are being stopped."""

    number: int
    began: float = 0.0
    alive: set[int] = field(default_factory=set)
    num_started: int = 0
    failures: list[Failure] = field(default_factory=list)
    is_running: bool = False
    stopped_at: float = NEVER
