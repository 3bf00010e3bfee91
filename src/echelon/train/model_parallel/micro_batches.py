"""Run a call of a model whose layers are on several ranks: micro-batches go through its stages, gradients go back."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from ..batches import rows_of
from ..function_types import Function
from ..global_tensors.tensors import map_tensors, tensors_of
from ..scaling_error import ScalingError
from ..wire import messages
from ..wire.world import World
from .stage import Stage

PARTS_PER_RANK = 4
"""Micro-batches for each rank: ranks wait for (p-1)/(m+p-1) of a step while the pipeline fills and drains."""


def parts_of(args: object, kwargs: object, number: int) -> list[tuple[Any, Any]]:
    """Split the arguments of a call into micro-batches, by the rows of the first tensor."""
    lead = next((one for one in tensors_of(args, kwargs) if one.dim()), None)
    if lead is None or number == 1 or lead.size(0) == 1:
        return [(args, kwargs)]
    size = lead.size(0)
    if any(_may_be_mask(one, size) for one in tensors_of(args, kwargs) if one is not lead):
        return [(args, kwargs)]
    rows = rows_of(size, min(number, size))

    def cut(place: int, tensor: torch.Tensor) -> torch.Tensor:
        if not tensor.dim() or tensor.size(0) != size or isinstance(tensor, nn.Parameter):
            return tensor
        return tensor.narrow(0, sum(rows[:place]), rows[place])

    return [map_tensors((args, kwargs), partial(cut, place)) for place in range(len(rows))]


def form_of(args: object, kwargs: object) -> str:
    """Return a text that identifies the form of a call: whether gradients are on, and the dims and dtypes of inputs."""
    return f"{torch.is_grad_enabled()} {map_tensors((args, kwargs), lambda one: (one.dim(), one.dtype))}"


def gives_rows(output: object, rows: int) -> bool:
    return all(one.dim() > 0 and one.size(0) == rows for one in tensors_of(output))


def _may_be_mask(tensor: torch.Tensor, size: int) -> bool:
    """Say whether a tensor may be a mask over positions, in a batch with as many samples as positions."""
    is_number = tensor.dtype in (torch.int64, torch.int32)
    return tensor.dim() == 2 and tensor.size(0) == tensor.size(1) == size and not is_number


class MicroBatches:
    """Runs the calls of a model in micro-batches; this rank computes one stage."""

    def __init__(self, stage: Stage, world: World, shared: Sequence[nn.Parameter], known: dict[str, int]) -> None:
        self._stage = stage
        self._num_parts = known
        """The number of micro-batches of a call, by the form of its inputs."""
        self._world = world
        self._shared = shared
        self._is_first, self._is_last = world.rank == 0, world.rank == world.size - 1

    def call(self, original: Callable[..., object], args: object, kwargs: object) -> Any:
        """Compute a batch; every rank gets the output of the model.

        A call with another form of inputs than the first call stays whole. In training it always stays whole, because
        its results with a few rows were not compared with one device. In evaluation it stays whole until its output
        has shown a row for each sample.
        """
        trains = torch.is_grad_enabled()
        form_of_inputs = form_of(args, kwargs)
        parts = parts_of(args, kwargs, self._num_parts.get(form_of_inputs, 1))
        passes: list[tuple[object, Any]] = []
        shape: dict[str, Any] = {}
        for part in parts:
            received = None if self._is_first else self._receive(shape, part)
            if received is not None and trains:
                received.requires_grad_()
            output = self._stage.compute(original, received, *part)
            if not self._is_last:
                self._send(output, shape)
            passes.append((received, output))
        form, wholes = self._share([output for _, output in passes], [_rows(part) for part in parts])
        if form_of_inputs not in self._num_parts:
            is_split = not trains and gives_rows(form, _rows((args, kwargs)))
            self._num_parts[form_of_inputs] = PARTS_PER_RANK * self._world.size if is_split else 1
        if trains:
            anchor = torch.zeros((), requires_grad=True)
            wholes = list(_join(anchor, _Passes(self, passes), *wholes))
        rest = iter(wholes)
        return map_tensors(form, lambda _: next(rest))

    def _receive(self, shape: dict[str, Any], part: object) -> torch.Tensor:
        """Receive an activation; its shape arrives once in a call, and its rows follow from the micro-batch."""
        if not shape:
            shape["first"], shape["dtype"], shape["rows"] = messages.receive(self._world.rank - 1)
        rows = _rows(part)
        sizes = (rows, *shape["first"][1:]) if shape["first"][0] == shape["rows"] else shape["first"]
        activation = torch.empty(sizes, dtype=shape["dtype"], device=self._world.device)
        messages.receive_tensors(activation, self._world.rank - 1)
        return activation

    def _send(self, output: torch.Tensor, shape: dict[str, Any]) -> None:
        if "sent" not in shape:
            shape["sent"] = True
            messages.send((tuple(output.shape), output.dtype, output.size(0)), self._world.rank + 1)
        messages.send_tensors(output.detach(), self._world.rank + 1)

    def _share(self, outputs: list[Any], rows: list[int]) -> tuple[Any, list[torch.Tensor]]:
        """Broadcast the output of the last stage to all ranks: its structure, and its tensors."""
        form: Any = None
        wholes: list[torch.Tensor] = []
        if self._is_last:
            if len(outputs) > 1 and not all(map(gives_rows, outputs, rows)):
                raise ScalingError(
                    "a model in a pipeline returned a row for each sample before, but now returns something "
                    "else for the same inputs",
                    "use a model that returns a row for each sample; or --scale tensor",
                )
            pieces = [tensors_of(one) for one in outputs]
            wholes = [
                ones[0].detach() if len(ones) == 1 else torch.cat([one.detach() for one in ones])
                for ones in zip(*pieces, strict=False)
            ]
            rest = iter(wholes)
            form = map_tensors(outputs[0], lambda _: torch.empty_like(next(rest), device="meta"))
        source = self._world.size - 1
        form = messages.broadcast(form, source)
        if not self._is_last:
            wholes = [torch.empty_like(one, device=self._world.device) for one in tensors_of(form)]
        wholes = [one.contiguous() for one in wholes]
        for whole in wholes:
            dist.broadcast(whole, source)
        return form, wholes

    def backward(self, passes: list[tuple[Any, Any]], gradients: Sequence[torch.Tensor | None]) -> None:
        """Run backward through all stages; add up the gradients of weights that several stages share."""
        before = [one.grad for one in self._shared]
        for parameter in self._shared:
            parameter.grad = None
        first = 0
        for received, output in passes:
            if self._is_last:
                first = self._begin(output, gradients, first)
            else:
                gradient = torch.empty_like(output, memory_format=torch.contiguous_format)
                messages.receive_tensors(gradient, self._world.rank + 1)
                if output.requires_grad:
                    torch.autograd.backward([output], [gradient])
            if received is not None:
                gradient = torch.zeros_like(received) if received.grad is None else received.grad
                messages.send_tensors(gradient, self._world.rank - 1)
        for parameter, old in zip(self._shared, before, strict=False):
            gradient = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
            dist.all_reduce(gradient)
            parameter.grad = gradient if old is None else old.add_(gradient)

    def _begin(self, output: object, gradients: Sequence[torch.Tensor | None], first: int) -> int:
        """Run backward from one micro-batch of the model's output; return the first row of the next micro-batch."""
        roots, root_gradients, rows = [], [], 0
        for tensor, gradient in zip(tensors_of(output), gradients, strict=False):
            rows = tensor.size(0) if tensor.dim() else 0
            if gradient is not None and tensor.requires_grad:
                roots.append(tensor)
                root_gradients.append(gradient.narrow(0, first, rows) if tensor.dim() else gradient)
        if roots:
            torch.autograd.backward(roots, root_gradients)
        return first + rows


class _Passes:
    """The micro-batches of one call, kept until backward() uses them."""

    def __init__(self, owner: MicroBatches, passes: list[tuple[object, object]]) -> None:
        self._owner = owner
        self._passes: list[tuple[object, object]] | None = passes

    def backward(self, gradients: Sequence[torch.Tensor | None]) -> None:
        if self._passes is None:
            raise ScalingError(
                "the script called backward() twice for one call of a model in a pipeline",
                "call backward() once for each call of the model",
            )
        passes, self._passes = self._passes, None
        self._owner.backward(passes, gradients)


class _Join(torch.autograd.Function):
    """Connects the whole output of a pipeline with backward() through its stages, for a loss that knows no stages."""

    @staticmethod
    def forward(context: Any, _anchor: torch.Tensor, passes: _Passes, *wholes: torch.Tensor) -> object:
        context.passes = passes
        context.set_materialize_grads(False)
        outputs = tuple(one.view_as(one) for one in wholes)
        context.mark_non_differentiable(*[one for one in outputs if not one.is_floating_point()])
        return outputs

    @staticmethod
    def backward(context: Any, *gradients: object) -> object:
        context.passes.backward(gradients)
        return (None, None, *[None for _ in gradients])


def _rows(part: Any) -> int:
    return next((one.size(0) for one in tensors_of(*part) if one.dim()), 1)


_join: Function = _Join.apply
