"""A long accumulation: once its micro-batches take the same memory, the optimizer takes its step at once."""

import weakref
from collections.abc import Callable
from functools import wraps
from typing import Any

from torch.optim import Optimizer

from .ledger import Ledger

LEAST = 4  # micro-batches that are traced in any case: the first makes gradients, the second adds to them


class BackwardPasses:
    """The backward passes since the last step of an optimizer."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._optimizers: list[Any] = []
        self._taken: list[tuple[int, int]] = []
        self._read = self._live = 0
        self._num_traced = 0

    @property
    def number(self) -> int:
        """How many have gone backward."""
        return len(self._taken)

    def noting(self, original: Callable[..., None]) -> Callable[..., None]:
        """Return the beginning of an optimizer, which is noted."""

        @wraps(original)
        def init(optimizer: Optimizer, *args: object, **kwargs: object) -> None:
            original(optimizer, *args, **kwargs)
            self._optimizers.append(weakref.ref(optimizer))

        return init

    def notes(self) -> list[str]:
        """Return a sentence if a step was cut short."""
        sentence = (
            f"the first {self._num_traced} micro-batches of a step were traced, and then the step of the optimizer: "
            "all micro-batches take the same memory"
        )
        return [sentence] if self._num_traced else []

    def forget(self) -> None:
        """Begin a new step."""
        self._taken = []

    def after_backward(self) -> None:
        self._taken.append(self._measure())

    def before_model(self) -> None:
        """Take the step of the optimizers, if one more micro-batch begins and would show nothing new."""
        if len(self._taken) < LEAST or self._taken[-1] != self._taken[-2]:
            return
        known = [optimizer for optimizer in (one() for one in self._optimizers) if optimizer is not None]
        ready = [optimizer for optimizer in known if _has_gradients(optimizer)]
        if not ready:
            return
        self._num_traced = len(self._taken)
        for optimizer in ready:
            optimizer.step()
            optimizer.zero_grad()

    def _measure(self) -> tuple[int, int]:
        """Return the bytes of the last micro-batch: at most, and at its end."""
        events, storages = self._ledger.events, self._ledger.storages
        live = most = self._live
        for event in events[self._read :]:
            if isinstance(event, int):
                live += storages[event].bytes if event >= 0 else -storages[-event - 1].bytes
                most = max(most, live)
        self._live, self._read = live, len(events)
        return most, live


def _has_gradients(optimizer: Any) -> bool:
    return any(weight.grad is not None for group in optimizer.param_groups for weight in group["params"])
