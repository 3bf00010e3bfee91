"""Check where the ranks run: each reports its binding, and the agent looks again later."""

import time
from typing import Any, Callable, Dict, List, Mapping, Optional, Sequence

from .affinity import look_at
from .binding import Binding
from .ranks import Attempt, Rank

# Wrappers and libraries move a process soon after its start; people may do so at any time.
LOOK_SECONDS = (1.0, 5.0, 30.0)
LOOK_AGAIN_SECONDS = 60.0

Held = Dict[str, Any]


class Holdings:
    """The cores and devices of the ranks of one attempt; reported once for all, then for each rank that changes."""

    def __init__(self, binding: Binding, attempt: Attempt, num_ranks: int, tell: Callable[..., None]) -> None:
        self._binding = binding
        self._attempt = attempt
        self._num_ranks = num_ranks
        self._tell = tell
        self._held: Dict[int, Held] = {}
        self._num_unseen = 0
        self._looks = 0
        self._began = time.monotonic()
        self._next = self._began + LOOK_SECONDS[0]

    def note(self, rank: Rank, cpus: Sequence[int], environ: Mapping[str, str]) -> None:
        """Record the binding of a rank at its start; once all ranks are recorded, report to the supervisor."""
        if self._binding.why_not:
            return
        self._held[rank.rank] = {"rank": rank.rank, **self._binding.held(rank.local_rank, cpus, environ)}
        self._conclude()

    def note_started(self, rank: Rank) -> None:
        """Record a rank that was started by exec, from the kernel's files."""
        holding = look_at(rank.pid) if not self._binding.why_not else None
        if holding is not None:
            self.note(rank, *holding)
        else:
            self.note_gone()

    def note_gone(self) -> None:
        """Count a rank that ended before it was seen, or never started."""
        self._num_unseen += 1
        self._conclude()

    def _conclude(self) -> None:
        if not self._binding.why_not and len(self._held) + self._num_unseen == self._num_ranks:
            self._say(list(self._held.values()), is_change=False)

    def look(self) -> Optional[float]:
        """Look again if it is time; return the seconds until the next look, None for never."""
        if self._binding.why_not:
            return None
        now = time.monotonic()
        if now >= self._next:
            self._looks += 1
            is_early = self._looks < len(LOOK_SECONDS)
            self._next = self._began + LOOK_SECONDS[self._looks] if is_early else now + LOOK_AGAIN_SECONDS
            changed = [held for held in map(self._changed, self._attempt.alive) if held is not None]
            if changed:
                self._say(changed, is_change=True)
        return max(0.0, self._next - now)

    def _changed(self, rank: Rank) -> Optional[Held]:
        before = self._held.get(rank.rank)
        holding = look_at(rank.pid) if before is not None else None
        if before is None or holding is None:
            return None
        cpus, environ = holding
        if not rank.was_forked:  # for a forked process the kernel shows its parent's environment
            before = {**before, "device": self._binding.held(rank.local_rank, cpus, environ)["device"]}
        now = {**before, **self._binding.cores_held(rank.local_rank, cpus, before["device"])}
        if now == self._held[rank.rank]:
            return None
        self._held[rank.rank] = now
        return now

    def _say(self, ranks: List[Held], *, is_change: bool) -> None:
        unseen = 0 if is_change else self._num_unseen
        self._tell("bound", attempt=self._attempt.number, ranks=ranks, is_change=is_change, num_unseen=unseen)
