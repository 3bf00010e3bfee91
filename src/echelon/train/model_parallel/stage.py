"""A stage runs the model's own forward(), and leaves out the blocks of other stages while it runs."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import nn

from ..function_types import Args, Function, Kwargs
from ..global_tensors.tensors import map_tensors, tensors_of
from ..strategies import seen

SHARED = -1
"""The stage number of a weight that several stages use."""


class StageLayout(seen.ForwardRecord):
    """The record of one call of a model, and the blocks at which the model is cut into stages."""

    def __init__(self, model: nn.Module, blocks: Mapping[str, nn.Module], args: Args, kwargs: Kwargs) -> None:
        self.leading: dict[str, int] = {}
        """For each module outside of blocks, the number of leading dims that its output shares with its input."""
        super().__init__(model, blocks, args, kwargs)
        self.order = list(blocks)
        outside = seen.sides(model, self, self.order)
        needed = seen.needed_later(model, self, outside.before, self.order[0], args, kwargs)
        self.before, self.after = [name for name in outside.before if name not in needed], outside.after
        self.everywhere = {*outside.loose, *needed}
        """The modules whose weights every stage uses, or may use."""
        self.bounds: list[int] = []
        self.outputs = {name: map_tensors(one, _shape_of) for name, one in self.outputs.items()}
        self.output = map_tensors(self.output, _shape_of)
        torch.clear_autocast_cache()  # weights that autocast cast here have no gradients

    def cut(self, begins: list[str]) -> None:
        """Set the stages by the names of their first blocks, without the first stage."""
        self.bounds = [0, *(self.order.index(name) for name in begins), len(self.order)]

    def _note(self, name: str) -> Function:
        note = super()._note(name)

        def both(module: nn.Module, args: object, output: object) -> None:
            note(module, args, output)
            source, made = next(iter(tensors_of(args)), None), next(iter(tensors_of(output)), None)
            if source is not None and made is not None:
                pairs = zip(source.shape, made.shape, strict=False)
                self.leading[name] = next((at for at, (one, other) in enumerate(pairs) if one != other), source.dim())

        return both

    def stages_of(self, model: nn.Module) -> dict[str, int]:
        """Return the stage of each weight by name; SHARED if its names are on several stages."""
        last = len(self.bounds) - 2
        stages: dict[int, int] = {}
        names = dict(model.named_parameters(remove_duplicate=False))
        for name, parameter in names.items():
            block = next((at for at, one in enumerate(self.order) if name.startswith(one + ".")), -1)
            if block >= 0:
                stage = max(at for at in range(last + 1) if self.bounds[at] <= block)
            elif name.rpartition(".")[0] in self.everywhere:
                stage = SHARED
            else:
                stage = 0 if name.rpartition(".")[0] in self.before else last
            stages[id(parameter)] = stage if stages.get(id(parameter), stage) == stage else SHARED
        return {name: stages[id(parameter)] for name, parameter in names.items()}


class _Done(Exception):
    """The last block of a stage has computed."""


class Stage:
    def __init__(self, model: nn.Module, layout: StageLayout, number: int) -> None:
        self._model = model
        self._layout = layout
        self._first, self._end = layout.bounds[number], layout.bounds[number + 1]
        self._received: object = None
        self._left: object = None
        self._others = self._replacements()

    def compute(self, original: Function, received: object, args: Args, kwargs: Kwargs) -> Any:
        """Return the output of this stage's last block; the last stage returns the output of the model."""
        self._received = received
        with self._left_out():
            try:
                return original(self._model, *args, **kwargs)
            except _Done:
                return self._left
            finally:
                self._received = self._left = None

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

    def _replacements(self) -> list[tuple[nn.Module, Function]]:
        layout, order = self._layout, self._layout.order
        replacements: list[tuple[nn.Module, Callable[..., object]]] = []
        for place, name in enumerate(order):
            module = self._model.get_submodule(name)
            is_tuple = isinstance(layout.outputs[name], tuple)
            if place < self._first:
                replacements.append((module, partial(self._skip, is_tuple, place == self._first - 1)))
            elif place >= self._end:
                replacements.append((module, _stop))
            elif place == self._end - 1 < len(order) - 1:
                replacements.append((module, partial(self._keep, module.forward)))
        elsewhere = [*(layout.before if self._first else ()), *(layout.after if self._end < len(order) else ())]
        for name in elsewhere:
            output = next(iter(tensors_of(layout.outputs[name])))
            module = self._model.get_submodule(name)
            like = seen.no_numbers(output.dtype, next(module.parameters()).device)
            stands = partial(_stand_in, like, tuple(output.shape), layout.leading.get(name, 0))
            replacements.append((module, stands))
        return replacements

    def _skip(self, is_tuple: bool, is_last: bool, *args: object, **kwargs: object) -> Any:
        """Return the input as output; the last block before this stage returns the received activation."""
        output = self._received if is_last else args[0] if args else next(iter(kwargs.values()))
        return (output,) if is_tuple else output

    def _keep(self, forward: Callable[..., object], *args: object, **kwargs: object) -> Any:
        output = forward(*args, **kwargs)
        self._left = output[0] if isinstance(output, tuple) else output
        return output


def _shape_of(tensor: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(tensor, device="meta")


def _stop(*_args: object, **_kwargs: object) -> Any:
    raise _Done


def _stand_in(
    like: torch.Tensor, shape: tuple[int, ...], leading: int, *args: object, **kwargs: object
) -> torch.Tensor:
    """Return a tensor in place of another stage's output; only its shape may be used."""
    source = next(iter(tensors_of(args, kwargs)), like)
    return like.expand((*source.shape[:leading], *shape[leading:]))
