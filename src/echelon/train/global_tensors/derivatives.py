"""torch.autograd.grad and a script's own autograd functions, for global tensors."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch.autograd.graph import GradientEdge

from ...pytorch import internals
from .. import patches
from ..function_types import Function
from ..scaling_error import ScalingError
from ..wire import exchange
from ..wire.world import World
from . import dispatch, pieces
from .model_calls import Owner
from .pieces import Pieces
from .rules import compute_whole
from .tensors import GlobalTensor, Partial, Sharded, own_part, tensors_of


def install(run: Owner) -> None:
    """Hook torch.autograd.grad."""
    original: Function = torch.autograd.grad

    def grad(outputs: object, inputs: object, grad_outputs: object = None, *args: Any, **kwargs: Any) -> Any:
        if internals.is_transformed():
            return original(outputs, inputs, grad_outputs, *args, **kwargs)
        if isinstance(inputs, (dict, GradientEdge)):
            return differentiate(outputs, inputs, grad_outputs, *args, **kwargs)
        inputs = _listed(inputs)  # a generator can be read once
        gradients = differentiate(outputs, inputs, grad_outputs, *args, **kwargs)
        return tuple(map(run.late_hooks.changed, inputs, gradients))

    def differentiate(outputs: object, inputs: object, grad_outputs: object = None, *args: Any, **kwargs: Any) -> Any:
        if run.world.size == 1 or run.calls.is_inside or not (run.has_begun and run.calls.num_shared):
            return original(outputs, inputs, grad_outputs, *args, **kwargs)
        outputs, inputs = _listed(outputs), _listed(inputs)
        is_of_rank = not any(isinstance(one, GlobalTensor) for one in (*outputs, *inputs))
        if is_of_rank and internals.is_going_backward():  # in a hook or a function of a model, with its rank's rows
            return original(outputs, inputs, grad_outputs, *args, **kwargs)

        def local_grad(local_outputs: object, local_inputs: object, weights: Sequence[torch.Tensor]) -> Any:
            return original(local_outputs, local_inputs, weights, *args, **kwargs)

        of_part = partial(_grad, local_grad, run.world, allows_unused=_allows_unused(*args, **kwargs))
        if any(isinstance(tensor, Pieces) for tensor in (*outputs, *inputs)):
            return _grad_of_shards(of_part, run.world.hosted, outputs, inputs, grad_outputs)
        return of_part(outputs, inputs, grad_outputs)

    why = "A gradient that the script asks for is that of the whole batch."
    patches.replace(torch.autograd, "grad", grad, why=why)
    install_functions()
    dispatch.install()


def install_functions() -> None:
    """Let a script's own autograd functions, which know no global tensors, compute with whole tensors."""
    original = internals.class_method(torch.autograd.Function, "apply")

    def apply(cls: Any, *args: Any, **kwargs: Any) -> Any:
        bound = original(cls)
        if any(isinstance(one, GlobalTensor) for one in tensors_of(args)):
            return compute_whole(lambda *given: bound(*given, **kwargs), args)
        return bound(*args, **kwargs)

    why = "A script's own autograd function computes with the whole batch."
    patches.replace(torch.autograd.Function, "apply", classmethod(apply), why=why)


def _grad_of_shards(
    of_part: Callable[..., object], num_shards: int, outputs: list[object], inputs: list[Any], output_gradients: object
) -> object:
    """Differentiate each virtual shard by itself, with respect to its own rows."""
    if not all(isinstance(one, Pieces) for one in (*outputs, *inputs)):
        raise ScalingError(
            "with --exact the script calls torch.autograd.grad for a tensor that has no entry for each sample",
            "use loss.backward(), or run without --exact",
        )
    parts = pieces.apart((outputs, inputs, output_gradients), num_shards)
    return pieces.of([of_part(part[0], part[1], part[2]) for part in parts])


def _listed(value: Any) -> list[Any]:
    return [value] if isinstance(value, torch.Tensor) else list(value)


def _grad(
    local_grad: Function,
    world: World,
    outputs: list[Any],
    inputs: list[Any],
    output_gradients: object,
    *,
    allows_unused: bool,
) -> object:
    """Differentiate this rank's part of the outputs; sum the gradient of an input that all ranks have over ranks."""
    are_parts = [isinstance(one, GlobalTensor) for one in outputs]
    if any(are_parts) and not all(are_parts):
        outputs = [one.whole() if isinstance(one, GlobalTensor) else one for one in outputs]
        are_parts = [False]
    wanted = _listed(output_gradients) if output_gradients is not None else [None] * len(outputs)
    weights = [_local_like(weight, output) for weight, output in zip(wanted, outputs, strict=False)]
    num_ranks = 1 if world.is_exact else world.size
    # as in backward(): each part is multiplied by the number of ranks, and hooks on the way divide by it
    gradients = local_grad(
        [one.local * num_ranks if isinstance(one, GlobalTensor) else one for one in outputs],
        [getattr(one, "local", one) for one in inputs],
        weights if output_gradients is not None else None,
    )
    if allows_unused and not world.is_exact:
        gradients = _with_zeros(gradients, inputs, world)
    factor = 1.0 if world.is_exact and all(are_parts) else 1.0 / world.size
    input_gradients: list[torch.Tensor | None] = []
    for gradient, variable in zip(gradients, inputs, strict=False):
        if gradient is None:
            input_gradients.append(None)
        elif isinstance(variable, Sharded):
            input_gradients.append(Sharded(gradient * factor, variable.world, variable.rows, variable.dim_of_rows))
        elif isinstance(variable, Partial):
            input_gradients.append(exchange.total(gradient * (factor / world.size), world))
        else:
            input_gradients.append(exchange.total(gradient * factor, world))
    return tuple(input_gradients)


def _allows_unused(
    _retain_graph: object = None, _create_graph: bool = False, _only_inputs: bool = True,
    allow_unused: bool | None = None, _is_grads_batched: bool = False, materialize_grads: bool = False,
    **_others: object,
) -> bool:  # fmt: skip
    """Say whether torch.autograd.grad returns None for an input that no output depends on."""
    return bool(allow_unused) and not materialize_grads


def _with_zeros(gradients: Sequence[Any], inputs: Sequence[Any], world: World) -> list[torch.Tensor | None]:
    """Return zeros for inputs that the rows of another rank use, and None for those that no rank uses."""
    flags = [gradient is not None for gradient in gradients]
    num_users = exchange.start_total(torch.tensor(flags, dtype=torch.float32, device=world.device), world)().tolist()
    return [
        torch.zeros_like(getattr(variable, "local", variable)) if gradient is None and users else gradient
        for gradient, variable, users in zip(gradients, inputs, num_users, strict=False)
    ]


def _local_like(weight: torch.Tensor | None, output: torch.Tensor) -> torch.Tensor | None:
    """Return the weights (grad_outputs) for this rank's part of an output."""
    if isinstance(weight, GlobalTensor) and isinstance(output, Sharded):
        return weight.local
    if isinstance(weight, GlobalTensor):
        return weight.whole()
    if weight is not None and isinstance(output, Sharded):
        return own_part(weight, output.world.rank, output.rows, output.dim_of_rows)
    return weight
