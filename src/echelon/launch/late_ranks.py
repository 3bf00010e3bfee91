"""Report ranks that still run long after others ended: without it, a hang at the end is silent."""

from __future__ import annotations

import time
from collections.abc import Callable

from echelon.launch.failure import NEVER

PATIENCE_SECONDS = 15.0
MAX_NAMED = 4


class LateRanks:
    """Report once per attempt the ranks that still run after the others ended."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say
        self.deadline = NEVER
        self.pids: dict[int, tuple[str, int]] = {}
        """Rank → its node and process."""

    def note_exit(self, num_alive: int) -> None:
        """Record that a rank ended well, and restart the timer."""
        self.deadline = time.monotonic() + PATIENCE_SECONDS if num_alive else NEVER

    def meet(self, alive: set[int], num_ranks: int, logs: str) -> None:
        """Report the ranks that still run: the timer has expired."""
        self.deadline = NEVER
        named = [f"rank {rank}{self._place(rank)} ({logs}/rank-{rank}.log)" for rank in sorted(alive)[:MAX_NAMED]]
        more = f" and {len(alive) - MAX_NAMED} more" if len(alive) > MAX_NAMED else ""
        verb = "runs" if len(alive) == 1 else "run"
        count = f"{num_ranks - len(alive)} of {num_ranks} ranks ended {PATIENCE_SECONDS:.0f} s ago"
        self._say(f"note: {count}; still {verb}: {', '.join(named)}{more}")

    def _place(self, rank: int) -> str:
        node, pid = self.pids.get(rank, ("", 0))
        return f" on {node}, process {pid}" if pid else ""
