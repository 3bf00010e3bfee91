"""Gradients that a checkpoint needs: the next step adds to them, or uses them as they are.

After the step of an optimizer whose gradients the script clears, none is needed. One is needed where a backward pass
came after the step, as with two optimizers of which one steps more often, and where the script never clears gradients.
"""

import weakref
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import nn

from .. import events
from ..scaling_error import ScalingError

GRADIENT = "gradient/"
"""The begin of the name of a gradient in a checkpoint; the name of its weight follows."""
_DENSE, _SPARSE = "dense", "sparse"


class Pending:
    """Knows for each optimizer whether its gradients are used up."""

    def __init__(self) -> None:
        self._num_backwards = 0
        self._stepped: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()
        """The number of backward passes before the latest step of an optimizer."""
        self._cleared: weakref.WeakSet[Any] = weakref.WeakSet()
        """The modules and optimizers whose gradients were cleared after a step."""

    def install(self) -> None:
        """Note what clears gradients."""
        events.cleared.listen("journal", self._note_clearing, why=_WHY)

    def _note_clearing(self, owner: object) -> None:
        if len(self._stepped):
            self._cleared.add(owner)

    def note_backward(self) -> None:
        """Notice that gradients were added."""
        self._num_backwards += 1

    def note_step(self, optimizer: torch.optim.Optimizer) -> None:
        """Notice that an optimizer has used its gradients."""
        self._stepped[optimizer] = self._num_backwards

    def gradients(self, objects: Any, reduce: Callable[[], None]) -> tuple[dict[str, torch.Tensor], dict[str, str]]:
        """Return the gradients that are needed by their names in a checkpoint, and by the weights' names their kinds.

        `objects` are those of the script; `reduce` lets gradients be those of the global batch.
        """
        needed = {id(weight) for weight in self._needing(objects.optimizers())}
        tensors, kinds = {}, {}
        if needed:
            reduce()
        for name, weight in objects.trained().items() if needed else ():
            if id(weight) in needed and weight.grad is not None:
                kinds[name] = _SPARSE if weight.grad.is_sparse else _DENSE
                tensors[GRADIENT + name] = (weight.grad.to_dense() if weight.grad.is_sparse else weight.grad).detach()
        return tensors, kinds

    def _needing(self, optimizers: Iterable[torch.optim.Optimizer]) -> list[torch.Tensor]:
        """Return the weights whose gradients, if there are any, are needed."""
        cleared = {id(weight) for owner in self._cleared for weight in _weights_of(owner)}
        return [
            weight
            for optimizer in optimizers
            for weight in _weights_of(optimizer)
            if id(weight) not in cleared or self._stepped.get(optimizer, -1) != self._num_backwards
        ]


_WHY = "A checkpoint leaves out the gradients that the script clears before it uses them."


def empty(weights: Mapping[str, torch.Tensor], kinds: Mapping[str, str]) -> dict[str, torch.Tensor]:
    """Return tensors to read the gradients of these kinds into."""
    missing = [name for name in kinds if name not in weights]
    if missing:
        raise ScalingError(
            f"the checkpoint has a gradient of {missing[0]}, which no optimizer of the script trains",
            "start the script without --resume",
        )
    return {GRADIENT + name: torch.zeros_like(weights[name]).detach() for name in kinds}


def put(weights: Mapping[str, torch.Tensor], kinds: Mapping[str, str], tensors: Mapping[str, torch.Tensor]) -> None:
    """Give weights the gradients of a checkpoint."""
    for name, kind in kinds.items():
        gradient = tensors[GRADIENT + name]
        weights[name].grad = gradient.to_sparse(1) if kind == _SPARSE else gradient


def _weights_of(owner: Any) -> Iterable[torch.Tensor]:
    if isinstance(owner, nn.Module):
        return owner.parameters()
    return (weight for group in owner.param_groups for weight in group["params"])
