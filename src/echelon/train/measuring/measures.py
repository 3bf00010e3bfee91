"""The sums of a rank: seconds by part of a step, samples, tokens, losses, peaks of memory."""

import math
import time
from typing import Any, Callable, Dict, Optional, Sequence, Tuple

from .. import device as devices
from ..exact.loading import Batches
from . import batch_size
from .loss import Loss
from .spans import Spans

MEMORY_SECONDS = 1.0
"""The time between two looks at the peaks of memory."""
Write = Callable[[Sequence[Optional[float]]], None]


class Measures:
    """Sums of this rank, from the end of its first step on; they are written at the end of each step.

    A sum that nothing was added to is missing, and no zero: a script without a DataLoader has no wait for data.
    """

    def __init__(self, names: Sequence[str], write: Write) -> None:
        self._names = names
        self._write = write
        self._sums: Dict[str, float] = {}
        self.spans = Spans(self.add)
        self.loss = Loss()
        self._loaded: Dict[str, float] = {}
        self._loader: Any = None
        self._has_begun = False
        self._memory_at = 0.0
        self._last: Optional[Tuple[float, float]] = None
        """When the last step ended, and how long this rank had waited for others until then."""

    def add(self, name: str, value: float) -> None:
        """Add to a sum."""
        if self._has_begun:
            self._sums[name] = self._sums.get(name, 0.0) + value

    def compiled(self, seconds: float) -> None:
        """Add the time of a compiler's work, also of that before the first step."""
        self._sums["compile_seconds"] = self._sums.get("compile_seconds", 0.0) + seconds

    def loaded(self, loader: Any, batch: Any) -> None:
        """Note a batch of an iterator; it counts once a loss is computed from it, and one of another loader does not.

        With --exact a rank loads its virtual shards of a batch at once.
        """
        if loader is not self._loader:
            self._loader, self._loaded = loader, {}
            self._sums["loader_workers"] = float(getattr(loader, "_num_workers", 0))
        for part in batch if isinstance(batch, Batches) else [batch]:
            for name, number in batch_size.of_rank(part).items():
                self._loaded[name] = self._loaded.get(name, 0.0) + number

    def trained(self) -> None:
        """Count the newest batch: its loss goes backward. A second loss of a batch adds nothing."""
        for name, number in self._loaded.items():
            self.add(name, number)
        self._loaded = {}

    def step(self) -> None:
        """End a step: write what is known. A step that is captured in a graph is none."""
        if devices.is_capturing():
            return
        self.spans.settle()
        self._has_begun = True
        now, waited = time.monotonic(), self._sums.get("communication_seconds", 0.0)
        if self._last is not None:
            own = now - self._last[0] - (waited - self._last[1])
            self.add("own_squares", own * own)
        self._last = now, waited
        self._note_loss(self.loss.step(now))
        if now - self._memory_at >= MEMORY_SECONDS:
            self._memory_at = now
            self._sums.update(_peaks())
        self._write([self._sums.get(name) for name in self._names])

    def _note_loss(self, loss: Optional[float]) -> None:
        if loss is None:
            return
        if math.isfinite(loss):
            self._sums["loss"] = loss
        else:
            self._sums.pop("loss", None)
            self._sums["losses_not_finite"] = self._sums.get("losses_not_finite", 0.0) + 1


def _peaks() -> Dict[str, float]:
    """Return the most bytes that PyTorch has used and reserved on this rank's device; nothing without a device."""
    peaks = devices.peak_memory()
    return {} if peaks is None else {"peak_allocated_bytes": float(peaks[0]), "peak_reserved_bytes": float(peaks[1])}
