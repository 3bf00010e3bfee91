"""Ranks that still run long after others have ended: a hang at the end is else nothing but silence."""

from __future__ import annotations

import time
from collections.abc import Callable

from echelon.launch.failure import NEVER

PATIENCE_SECONDS = 15.0
MAX_NAMED = 4


class Stragglers:
    """Says once per attempt who has not ended when the others have."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say
        self.deadline = NEVER
        self.pids: dict[int, tuple[str, int]] = {}
        """Rank → its node and process."""

    def note_exit(self, num_alive: int) -> None:
        """Take note that a rank has ended well; the clock runs anew with each."""
        self.deadline = time.monotonic() + PATIENCE_SECONDS if num_alive else NEVER

    def meet(self, alive: set[int], num_ranks: int, logs: str) -> None:
        """Speak, now that it is time."""
        self.deadline = NEVER
        named = [f"rank {rank}{self._place(rank)} ({logs}/rank-{rank}.log)" for rank in sorted(alive)[:MAX_NAMED]]
        more = f" and {len(alive) - MAX_NAMED} more" if len(alive) > MAX_NAMED else ""
        verb = "runs" if len(alive) == 1 else "run"
        count = f"{num_ranks - len(alive)} of {num_ranks} ranks ended {PATIENCE_SECONDS:.0f} s ago"
        self._say(f"note: {count}; still {verb}: {', '.join(named)}{more}")

    def _place(self, rank: int) -> str:
        node, pid = self.pids.get(rank, ("", 0))
        return f" on {node}, process {pid}" if pid else ""
