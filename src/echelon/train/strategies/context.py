"""Cut each sequence along the context axis.

The tokens become DTensors cut by position, so that the model's own code goes on to see the length of the whole
sequence: its positions, masks and tables are right without a change. Weights are whole on every rank, their gradients
summed.
"""

import sys
from typing import Any, Dict

import torch
from torch import nn

from .. import patches
from . import attention
from .axes import Axes
from .dtensors import allow_plain_tensors, teach_losses
from .strategy import StrategyError
from .tensor_plans import divisor_of, refuse_dropout
from .versions import unsent


def apply(model: nn.Module, axes: Axes) -> None:
    """Let a model compute sequences that are cut."""
    from torch.distributed.tensor import Replicate, distribute_tensor

    refuse_dropout(model, "", axes)
    mesh = axes.mesh("context")
    known: Dict[int, nn.Parameter] = {}
    for module in model.modules():
        for name, parameter in list(module.named_parameters(recurse=False)):
            if id(parameter) not in known:  # tied weights stay tied
                whole = distribute_tensor(parameter.detach(), mesh, [Replicate()], **unsent(distribute_tensor))
                known[id(parameter)] = nn.Parameter(whole, requires_grad=parameter.requires_grad)
            module.register_parameter(name, known[id(parameter)])
    allow_plain_tensors()
    teach_losses()
    _hook_attention(model, mesh, axes.strategy.attention)


def cut(tensor: Any, axes: Axes) -> Any:
    """Return this rank's tokens of each sequence, as a DTensor of the whole sequences."""
    from torch.distributed.tensor import DTensor, Shard

    if not isinstance(tensor, torch.Tensor) or tensor.dim() < 2:
        return tensor
    return DTensor.from_local(cut_plain(tensor, axes), axes.mesh("context"), [Shard(1)], run_check=False)


def cut_plain(tensor: Any, axes: Axes) -> Any:
    """Return this rank's tokens of each sequence, as a plain tensor."""
    number = axes.sizes["context"]
    if not isinstance(tensor, torch.Tensor) or tensor.dim() < 2:
        return tensor
    if tensor.size(1) % number:
        raise StrategyError(
            "a sequence has %d tokens, which is not a multiple of the context axis, %d" % (tensor.size(1), number),
            hint="use sequences of a multiple of %d tokens, or context=%d"
            % (number, divisor_of(tensor.size(1), number)),
        )
    return tensor.chunk(number, 1)[axes.place("context")].contiguous()


def leave(output: Any) -> Any:
    """Return the output of a model for this rank's tokens, as a plain tensor."""
    from torch.distributed.tensor import DTensor, Shard

    if not isinstance(output, DTensor):
        return output
    if not output.placements[0].is_shard(1):
        output = output.redistribute(placements=[Shard(1)])
    return output.to_local()


def _hook_attention(model: nn.Module, mesh: Any, kind: str) -> None:
    """Replace PyTorch's attention, also under the names that it has in the model's modules."""
    original = nn.functional.scaled_dot_product_attention
    if getattr(original, "is_for_context", False):
        return
    ours = attention.make(original, mesh, kind)
    why = "Attention sees the tokens of all ranks."
    for name in {type(module).__module__ for module in model.modules()}:
        namespace = vars(sys.modules[name]) if name in sys.modules else {}
        for key in [key for key, value in namespace.items() if value is original]:
            patches.replace(sys.modules[name], key, ours, why=why)
    patches.replace(nn.functional, "scaled_dot_product_attention", ours, why=why)
