"""One start of all ranks, as the supervisor tracks it."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from echelon.launch.failure import NEVER, Failure, first


@dataclass(slots=True)
class Attempt:
    """The ranks that run and that failed, and the time at which the supervisor began to stop all ranks."""

    number: int
    began: float = 0.0
    alive: set[int] = field(default_factory=set)
    num_started: int = 0
    ended_well: dict[int, float] = field(default_factory=dict)
    """Rank → time of its end, by its node's clock, corrected."""
    failures: list[Failure] = field(default_factory=list)
    is_running: bool = False
    stopped_at: float = NEVER

    def first_failure(self) -> Failure | None:
        """Return the failure that explains the end of the attempt; for a symptom, name the ranks that ended before."""
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
