"""The sums of a rank: seconds by part of a step, samples, tokens, losses, peaks of memory."""

import time
from collections.abc import Callable, Sequence
from typing import Any

import torch

from ...node.pulse import NOT_OWN
from ..exact.keys import Batches
from ..wire import device as devices
from .spans import Spans
from .value_watch import ValueWatch

MEMORY_SECONDS = 1.0
"""The time between two looks at the peaks of memory."""
Write = Callable[[Sequence[float | None]], None]


class Measures:
    """Sums of this rank, from the end of its first step on; they are written at the end of each step.

    A sum that nothing was added to is missing, and no zero: a script without a DataLoader has no wait for data.
    """

    def __init__(self, names: Sequence[str], write: Write, tell: Callable[[str], None] = lambda _: None) -> None:
        self._names = names
        self._write = write
        self._sums: dict[str, float] = {}
        self.spans = Spans(self.add)
        self.bad_steps = ValueWatch(tell)
        self._loaded: dict[str, float] = {}
        self._loader: object = None
        self._has_begun = False
        self._memory_at = 0.0
        self._last: tuple[float, float] | None = None
        """When the last step ended, and how long this rank had waited for others, or compared, until then."""

    def add(self, name: str, value: float) -> None:
        """Add to a sum."""
        if self._has_begun:
            self._sums[name] = self._sums.get(name, 0.0) + value

    def compiled(self, seconds: float) -> None:
        """Add the time of a compiler's work, also of that before the first step."""
        for name, value in (("compile_seconds", seconds), ("graphs", 1.0)):
            self._sums[name] = self._sums.get(name, 0.0) + value

    def loaded(self, loader: object, batch: object) -> None:
        """Note a batch of an iterator; it counts once a loss is computed from it, and one of another loader does not.

        With --exact a rank loads its virtual shards of a batch at once.
        """
        if loader is not self._loader:
            self._loader, self._loaded = loader, {}
            self._sums["loader_workers"] = float(getattr(loader, "_num_workers", 0))
        for part in batch if isinstance(batch, Batches) else [batch]:
            for name, number in of_rank(part).items():
                self._loaded[name] = self._loaded.get(name, 0.0) + number

    def trained(self) -> None:
        """Count a pass backward, and the newest batch: its loss is computed. A second loss of a batch adds nothing."""
        self.add("passes", 1.0)
        for name, number in self._loaded.items():
            self.add(name, number)
        self._loaded = {}

    def step(self) -> None:
        """End a step: write what is known. A step that is captured in a graph is none."""
        if devices.is_capturing():
            return
        self.spans.collect_finished()
        self._has_begun = True
        now, waited = time.monotonic(), sum(self._sums.get(name, 0.0) for name in NOT_OWN)
        if self._last is not None:
            own = now - self._last[0] - (waited - self._last[1])
            self.add("own_squares", own * own)
        self._last = now, waited
        self._sums.pop("loss", None)  # that of this step may be no number
        self._sums.update(self.bad_steps.losses)
        if now - self._memory_at >= MEMORY_SECONDS:
            self._memory_at = now
            self._sums.update(_peaks(), threads=float(torch.get_num_threads()))
        self._write([self._sums.get(name) for name in self._names])


def _peaks() -> dict[str, float]:
    """Return the most bytes that PyTorch has used and reserved on this rank's device; nothing without a device."""
    peaks = devices.peak_memory()
    return {} if peaks is None else {"peak_allocated_bytes": float(peaks[0]), "peak_reserved_bytes": float(peaks[1])}


_DEEPEST = 4
_num_ranks = 1


def share(num_ranks: int) -> None:
    """Say that so many ranks get each batch, and compute it together."""
    global _num_ranks
    _num_ranks = num_ranks


def of_rank(batch: object) -> dict[str, float]:
    """Return what this rank adds to the samples and tokens of all ranks."""
    return {name: number / _num_ranks for name, number in size_of(batch).items()}


def size_of(batch: object) -> dict[str, int]:
    """Return the samples, the numbers and the tokens of a batch, without what its form does not tell.

    The first tensor has a row for each sample. If it has whole numbers in two dims, they are tokens.
    """
    tensor = _first_tensor(batch, 0)
    if tensor is None or tensor.is_nested or not tensor.dim():
        return {}
    is_text = tensor.dim() == 2 and tensor.dtype in (torch.int64, torch.int32)
    sizes = {"samples": tensor.shape[0], "elements": tensor.numel()}
    return {**sizes, "tokens": tensor.numel()} if is_text else sizes


def _first_tensor(batch: object, depth: int) -> torch.Tensor | None:
    if isinstance(batch, torch.Tensor):
        return batch
    if depth >= _DEEPEST:
        return None
    parts: Sequence[Any] | Any = ()
    if isinstance(batch, (list, tuple)):
        parts = batch
    elif hasattr(batch, "values") and hasattr(batch, "keys"):
        parts = batch.values()
    return next((tensor for part in parts if (tensor := _first_tensor(part, depth + 1)) is not None), None)
