"""A stage runs the model's own forward(), and leaves out the blocks of other stages while it runs."""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import nn

from ..function_types import Args, Function, Kwargs
from ..strategies import seen
from ..strategies.stage_modules import StageForward

SHARED = -1
"""The stage number of a weight that several stages use."""


class StageLayout(seen.ForwardRecord):
    """The record of one call of a model, and the blocks at which the model is cut into stages."""

    def __init__(self, model: nn.Module, blocks: Mapping[str, nn.Module], args: Args, kwargs: Kwargs) -> None:
        super().__init__(model, blocks, args, kwargs)
        outside = seen.sides(model, self)
        needed = seen.needed_later(model, self, outside.before, args, kwargs)
        self._sides = outside._replace(before=[name for name in outside.before if name not in needed])
        self._everywhere = {*outside.loose, *needed}
        """The modules whose weights every stage uses, or may use."""
        self._bounds: list[int] = []
        torch.clear_autocast_cache()  # weights that autocast cast here have no gradients

    def cut(self, begins: Iterable[str]) -> None:
        """Set the stages by the names of their first blocks, without the first stage."""
        self._bounds = self.bounds_of(begins)

    def stages_of(self, model: nn.Module) -> dict[str, int]:
        """Return the stage of each weight by name; SHARED if its names are on several stages."""
        last = len(self._bounds) - 2
        stages: dict[int, int] = {}
        names = dict(model.named_parameters(remove_duplicate=False))
        for name, parameter in names.items():
            block = next((at for at, one in enumerate(self.order) if name.startswith(one + ".")), -1)
            if block >= 0:
                stage = max(at for at in range(last + 1) if self._bounds[at] <= block)
            elif name.rpartition(".")[0] in self._everywhere:
                stage = SHARED
            else:
                stage = 0 if name.rpartition(".")[0] in self._sides.before else last
            stages[id(parameter)] = stage if stages.get(id(parameter), stage) == stage else SHARED
        return {name: stages[id(parameter)] for name, parameter in names.items()}

    def forward_of(self, number: int, device: torch.device) -> StageForward:
        return StageForward(self, self._sides, (self._bounds[number], self._bounds[number + 1]), device)


class Stage:
    def __init__(self, model: nn.Module, forward: StageForward) -> None:
        self._model = model
        self._forward = forward
        self._others = [(model.get_submodule(name), function) for name, function in forward.others.items()]
        if not forward.is_last:
            last = model.get_submodule(forward.last)
            self._others.append((last, partial(self._keep, last.forward)))

    def compute(self, original: Function, received: object, args: Args, kwargs: Kwargs) -> Any:
        with self._left_out():
            return self._forward.compute(partial(original, self._model), received, args, kwargs)

    @contextmanager
    def _left_out(self) -> Iterator[None]:
        kept = [(module, module.__dict__.get("forward")) for module, _ in self._others]
        for module, forward in self._others:
            module.__dict__["forward"] = forward
        try:
            yield
        finally:
            for module, own in kept:
                if own is None:
                    del module.__dict__["forward"]
                else:
                    module.__dict__["forward"] = own

    def _keep(self, forward: Function, *args: object, **kwargs: object) -> Any:
        output = forward(*args, **kwargs)
        self._forward.keep(output)
        return output
