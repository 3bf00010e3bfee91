"""Whether ranks could share the batches of a traced script, by the rule that `echelon run` follows."""

from typing import Any

import torch
from torch import nn

from ..pytorch import internals
from ..train import patches
from ..train.batches import is_batch, refusal
from ..train.global_tensors.arguments import TIME_FIRST, of_layer
from ..train.global_tensors.model_calls import Unshared

NUM_RANKS = 2
_WHY = "A batch of a loader is one that ranks can share."


class Sharing:
    """The calls of models before the first backward()."""

    def __init__(self) -> None:
        self.refusal = ""
        """What `echelon run --scale data` would say; empty: it would share the batches, or it is not known."""
        self._last: Unshared | None = None
        self._model: nn.Module | None = None
        self._is_shared = False
        self._is_over = False

    def install(self) -> None:
        """Note whether batches come from a loader: then it is the run that knows them."""
        original = internals.LoaderIterator.__next__

        def following(loader: object) -> Any:
            self._is_shared = True
            return original(loader)

        patches.replace(internals.LoaderIterator, "__next__", following, why=_WHY)

    def called(self, model: nn.Module, tensors: list[torch.Tensor]) -> None:
        first = next((tensor for tensor in tensors if tensor.dim()), None)
        if self._is_over or next(model.parameters(), None) is None:
            return
        shape = None if first is None else tuple(first.shape)
        self._model = model
        self._last = Unshared(type(model).__name__, shape, set())
        is_argument = first is not None and not isinstance(first, nn.Parameter)
        self._is_shared = self._is_shared or (is_argument and is_batch(first, set()))  # type: ignore[arg-type]

    def entered(self, layer: nn.Module, tensors: list[torch.Tensor]) -> None:
        """Note a layer to which the rows of the batch are steps of time."""
        if self._is_over or self.refusal or self._model is None or not isinstance(layer, TIME_FIRST):
            return
        shape = self._last.shape if self._last is not None else None
        if layer.batch_first or not shape or not tensors or len(shape) < 2:
            return
        rows, sizes = shape[0], tuple(tensors[0].shape)
        if sizes[0] == rows and (len(sizes) < 3 or sizes[1] % rows):  # else the two dims may have been exchanged
            self.refusal = of_layer(self._model, shape, rows, type(layer).__name__)[0]

    def went_backward(self, loss: object) -> None:
        """Judge at the first loss."""
        if not (self._is_over or self._is_shared or self.refusal) and isinstance(loss, torch.Tensor):
            error = refusal(loss, self._last, NUM_RANKS, True)
            error.withdraw()  # it is told, not raised
            self.refusal = str(error).partition("\n")[0]
        self._is_over = True
