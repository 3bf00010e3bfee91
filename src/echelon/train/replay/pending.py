"""Gradients that a checkpoint needs: the next step adds to them, or uses them as they are.

After the step of an optimizer whose gradients the script clears before each of its steps, none is needed. One is needed
where a backward pass came after the step, as with two optimizers of which one steps more often, where the script does
not clear gradients before each step, and where it looks at them itself.
"""

import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import nn

from .. import events
from ..modules import weights_of
from ..scaling_error import ScalingError

GRADIENT = "gradient/"
"""The begin of the name of a gradient in a checkpoint; the name of its weight follows."""
_DENSE, _SPARSE = "dense", "sparse"


class Pending:
    """Knows for each optimizer whether its gradients are used up."""

    def __init__(self) -> None:
        self.looks = False
        """Whether the script looks at gradients itself."""
        self.left: list[int] = []
        """The numbers of the optimizers whose gradients the latest checkpoint left out."""
        self._num_backwards = self._num_events = 0
        self._stepped: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()
        """The number of backward passes before the latest step of an optimizer."""
        self._stepped_at: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()
        self._cleared: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()
        """The modules and optimizers whose gradients were cleared after a step, and when they last were."""
        self._adds: weakref.WeakSet[Any] = weakref.WeakSet()
        """The optimizers that have stepped twice with nothing cleared in between."""
        self._must_clear: weakref.WeakSet[Any] = weakref.WeakSet()

    def install(self) -> None:
        events.cleared.listen("journal", self._note_clearing, why=_WHY)

    def _note_clearing(self, owner: object) -> None:
        if len(self._stepped):
            self._num_events += 1
            self._cleared[owner] = self._num_events
        if isinstance(owner, nn.Module):
            self._must_clear.clear()
        self._must_clear.discard(owner)

    def note_backward(self) -> None:
        self._num_backwards += 1

    def note_step(self, optimizer: torch.optim.Optimizer) -> None:
        if optimizer in self._must_clear:
            raise ScalingError(
                f"{type(optimizer).__name__} steps with gradients of before the checkpoint, which does not have them: "
                "so far the script has cleared them before each step",
                "clear the gradients before each step, or after each; or start the script without --resume",
            )
        before = self._stepped_at.get(optimizer)
        if before is not None and all(
            at < before for owner, at in self._cleared.items() if owner is optimizer or isinstance(owner, nn.Module)
        ):
            self._adds.add(optimizer)
        self._num_events += 1
        self._stepped_at[optimizer] = self._num_events
        self._stepped[optimizer] = self._num_backwards

    def expect_clearing(self, optimizers: Sequence[Any], numbers: Iterable[int]) -> None:
        """Refuse the next step of these optimizers if their gradients are not cleared before it."""
        self._must_clear.update(optimizers[number] for number in numbers if number < len(optimizers))

    def gradients(self, objects: Any, reduce: Callable[[], None]) -> tuple[dict[str, torch.Tensor], dict[str, str]]:
        """Return the gradients that are needed by their names in a checkpoint, and by the weights' names their kinds.

        `objects` are those of the script; `reduce` lets gradients be those of the global batch.
        """
        needed = {id(weight) for weight in self._needing(objects.optimizers())}
        self.left = [
            number
            for number, optimizer in enumerate(objects.optimizers())
            if any(weight.grad is not None and id(weight) not in needed for weight in weights_of(optimizer))
        ]
        tensors, kinds = {}, {}
        if needed:
            reduce()
        for name, weight in objects.trained().items() if needed else ():
            if id(weight) in needed and weight.grad is not None:
                kinds[name] = _SPARSE if weight.grad.is_sparse else _DENSE
                tensors[GRADIENT + name] = (weight.grad.to_dense() if weight.grad.is_sparse else weight.grad).detach()
        return tensors, kinds

    def _needing(self, optimizers: Iterable[torch.optim.Optimizer]) -> list[torch.Tensor]:
        cleared = {id(weight) for owner in self._cleared for weight in weights_of(owner)}
        return [
            weight
            for optimizer in optimizers
            for weight in weights_of(optimizer)
            if self.looks
            or optimizer in self._adds
            or id(weight) not in cleared
            or self._stepped.get(optimizer, -1) != self._num_backwards
        ]


_WHY = "A checkpoint leaves out the gradients that the script clears before it uses them."


def empty(weights: Mapping[str, torch.Tensor], kinds: Mapping[str, str]) -> dict[str, torch.Tensor]:
    missing = [name for name in kinds if name not in weights]
    if missing:
        raise ScalingError(
            f"the checkpoint has a gradient of {missing[0]}, which no optimizer of the script trains",
            "start the script without --resume",
        )
    return {GRADIENT + name: torch.zeros_like(weights[name]).detach() for name in kinds}


def put(weights: Mapping[str, torch.Tensor], kinds: Mapping[str, str], tensors: Mapping[str, torch.Tensor]) -> None:
    for name, kind in kinds.items():
        gradient = tensors[GRADIENT + name]
        weights[name].grad = gradient.to_sparse(1) if kind == _SPARSE else gradient
