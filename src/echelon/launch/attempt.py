"""One start of all ranks, as the supervisor keeps account of it."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from echelon.launch.failure import NEVER, Failure, first


@dataclass(slots=True)
class Attempt:
    """Who is alive, who failed, and since when all are being stopped."""

    number: int
    began: float = 0.0
    alive: set[int] = field(default_factory=set)
    num_started: int = 0
    ended_well: dict[int, float] = field(default_factory=dict)
    """Ranks, and when each has ended by its node's clock set right."""
    failures: list[Failure] = field(default_factory=list)
    is_running: bool = False
    stopped_at: float = NEVER

    def first_failure(self) -> Failure | None:
        """Return what explains the end of the attempt; of ranks that others miss it says who had left."""
        if not self.failures:
            return None
        reason = first(self.failures)
        left = sorted(rank for rank, at in self.ended_well.items() if at < reason.time)
        if not reason.is_symptom or not left:
            return reason
        who = f"rank {left[0]}" + (f" and {len(left) - 1} more" if len(left) > 1 else "")
        detail = (
            f"{who} had ended before, with exit code 0; all ranks must take the same number of steps, "
            "so no rank may decide by its own clock or files when to stop"
        )
        return replace(reason, detail=f"{reason.detail}; {detail}" if reason.detail else detail)
