"""Attention over sequences that are cut by position: ranks gather keys and values, or pass them around a ring.

PyTorch's context_parallel (torch.distributed.tensor.experimental) needs CUDA kernels, and positions as arguments.

Cut each sequence along the context axis.

The tokens become DTensors cut by position, so that the model's own code goes on to see the length of the whole
sequence: its positions, masks and tables are right without a change. Weights are whole on every rank, their gradients
summed.
"""

import math
import sys
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from .. import patches
from ..function_types import Function
from ..wire import messages
from ..wire.gather import whole
from . import dropout
from .axes import Axes
from .dtensors import allow_plain_tensors, teach_losses
from .strategy import StrategyError
from .tensor_plans import divisor_of, refuse_dropout
from .versions import unsent

Pair = tuple[torch.Tensor, torch.Tensor]


def make(original: Function, mesh: Any, kind: str) -> object:
    """Return an attention function for DTensors that are cut along positions; other tensors go to PyTorch's."""
    from torch.distributed.tensor import DTensor, Shard

    def attend(
        query: torch.Tensor,
        key: Any,
        value: Any,
        attn_mask: object = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        scale: Any = None,
        enable_gqa: bool = False,
    ) -> Any:
        if not isinstance(query, DTensor) or not query.placements[0].is_shard(query.dim() - 2):
            extra = {"enable_gqa": True} if enable_gqa else {}
            return original(query, key, value, attn_mask, dropout_p, is_causal, scale=scale, **extra)
        if dropout_p and dropout.is_installed():
            result = _with_dropout(query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa)
        elif kind == "ring":
            if attn_mask is not None or dropout_p:
                raise StrategyError(
                    'attention="ring" supports causal masks and no mask, but the model gives %s'
                    % ("a mask" if attn_mask is not None else "dropout"),
                    hint='attention="all-gather"',
                )
            scale = 1 / math.sqrt(query.size(-1)) if scale is None else scale
            groups = query.size(1) // key.size(1) if enable_gqa else 1
            keys, values = (one.to_local().repeat_interleave(groups, 1) for one in (key, value))
            result = _ring(query.to_local(), keys, values, mesh.get_group(), is_causal, scale)
        else:
            options = {"dropout_p": dropout_p, "scale": scale, **({"enable_gqa": True} if enable_gqa else {})}
            result = _with_all(original, query, key, value, attn_mask, is_causal, options)
        return DTensor.from_local(result, query.device_mesh, [Shard(query.dim() - 2)], run_check=False)

    attend.is_for_context = True  # type: ignore[attr-defined]
    return attend


def _with_all(
    original: Function, query: Any, key: torch.Tensor, value: object, mask: Any, is_causal: bool, options: Any
) -> torch.Tensor:
    """Gather all keys and values, and compute the attention of this rank's queries."""
    own = _plain(query.to_local())
    end = key.size(-2)
    first = query.device_mesh.get_local_rank() * own.size(-2)
    keys, values = _all_of(key), _all_of(value)
    if is_causal:
        after = first + own.size(-2)
        rows, end = torch.arange(first, after, device=own.device)[:, None], min(after, end)
        mask = rows >= torch.arange(end, device=own.device)
    elif mask is not None:
        mask = _own_rows(mask, query, first, own.size(-2))
    result: torch.Tensor = original(own, keys[..., :end, :], values[..., :end, :], mask, **options)
    return result


def _all_of(tensor: Any) -> torch.Tensor:
    """Return keys or values of all positions; their gradients are summed over ranks."""
    from torch.distributed.tensor import Partial, Replicate

    gathered: torch.Tensor = _plain(tensor.redistribute(placements=[Replicate()]).to_local(grad_placements=[Partial()]))
    return gathered


def _own_rows(mask: Any, query: torch.Tensor, first: int, number: int) -> Any:
    mask = whole(mask)
    return mask[..., first : first + number, :] if mask.size(-2) == query.size(-2) else mask


def _with_dropout(
    query: Any, key: torch.Tensor, value: object, mask: object, p: float, is_causal: bool, scale: Any, enable_gqa: bool
) -> torch.Tensor:
    """Compute attention with the dropout of one device: all ranks draw numbers for all queries."""
    noise, first = dropout.rows_of_noise(query, key.size(-2), p)
    own = _plain(query.to_local())
    mask = None if mask is None else _own_rows(mask, query, first, own.size(-2))
    return dropout.attend_with(
        noise, own, _all_of(key), _all_of(value), mask,
        first=first if is_causal else None, scale=scale, enable_gqa=enable_gqa,
    )  # fmt: skip


class _Plain(torch.autograd.Function):
    """Makes the gradient of a tensor contiguous: views of a DTensor use the strides of the whole tensor."""

    @staticmethod
    def forward(_context: object, tensor: torch.Tensor) -> torch.Tensor:
        return tensor.view_as(tensor)

    @staticmethod
    def backward(_context: object, *gradients: torch.Tensor) -> object:
        return gradients[0].contiguous()


class _Ring(torch.autograd.Function):
    """Attention whose keys and values travel once round all ranks, forward and backward."""

    @staticmethod
    def forward(
        context: Any,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        group: "dist.ProcessGroup | None",
        causal: bool,
        scale: float,
    ) -> torch.Tensor:
        place, number = dist.get_rank(group), dist.get_world_size(group)
        out = torch.zeros(query.shape, dtype=torch.float32, device=query.device)
        weight = torch.full((*query.shape[:-1], 1), -math.inf, device=query.device)
        pair = [key.contiguous(), value.contiguous()]
        for step in range(number):
            source = (place - step) % number
            following = _pass_on(pair, group) if step + 1 < number else None
            if not causal or source <= place:
                scores = _scores(query, pair[0], scale, is_own=causal and source == place)
                theirs = scores.logsumexp(-1, keepdim=True)
                both = torch.logaddexp(weight, theirs)
                out = out * (weight - both).exp() + (scores - both).exp() @ pair[1].float()
                weight = both
            pair = following.wait() if following is not None else pair
        context.save_for_backward(query, key, value, out, weight)
        context.group, context.causal, context.scale = group, causal, scale
        return out.to(query.dtype)

    @staticmethod
    def backward(context: Any, *gradients: torch.Tensor) -> object:
        query, key, value, out, weight = context.saved_tensors
        place, number = dist.get_rank(context.group), dist.get_world_size(context.group)
        gradient = gradients[0].float()
        inner = (gradient * out).sum(-1, keepdim=True)
        of_query = torch.zeros_like(out)
        travelling = [key.contiguous(), value.contiguous(), torch.zeros(key.shape), torch.zeros(value.shape)]
        travelling = [one.to(query.device) for one in travelling]
        for step in range(number):
            source = (place - step) % number
            if not context.causal or source <= place:
                keys, values, of_keys, of_values = travelling
                scores = _scores(query, keys, context.scale, is_own=context.causal and source == place)
                chances = (scores - weight).exp()
                of_scores = chances * (gradient @ values.float().mT - inner) * context.scale
                of_query += of_scores @ keys.float()
                of_keys += of_scores.mT @ query.float()
                of_values += chances.mT @ gradient
            if step + 1 == number:
                travelling = travelling[2:]  # only the gradients travel on, to the ranks of their keys and values
            travelling = _pass_on(travelling, context.group).wait()
        of_keys, of_values = travelling
        return of_query.to(query.dtype), of_keys.to(key.dtype), of_values.to(value.dtype), None, None, None


def _scores(query: torch.Tensor, key: torch.Tensor, scale: float, *, is_own: bool) -> torch.Tensor:
    scores = query.float() @ key.float().mT * scale
    if is_own:
        later = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).triu(1)
        scores = scores.masked_fill(later, -math.inf)
    return scores


def _pass_on(tensors: list[torch.Tensor], group: Any) -> messages.TensorExchange:
    """Send tensors to the next rank of the ring, and receive tensors from the rank before."""
    place, number = dist.get_rank(group), dist.get_world_size(group)
    after = dist.get_global_rank(group, (place + 1) % number)
    before = dist.get_global_rank(group, (place - 1) % number)
    sends = [messages.To(tensor, after) for tensor in tensors]
    receives = [messages.To(torch.empty_like(tensor), before) for tensor in tensors]
    return messages.TensorExchange(sends, receives, group=group)


_ring: Function = _Ring.apply
_plain: Function = _Plain.apply


def apply(model: nn.Module, axes: Axes) -> None:
    from torch.distributed.tensor import Replicate, distribute_tensor

    refuse_dropout(model, "", axes)
    mesh = axes.mesh("context")
    known: dict[int, nn.Parameter] = {}
    for module in model.modules():
        for name, parameter in list(module.named_parameters(recurse=False)):
            if id(parameter) not in known:  # tied weights stay tied
                whole = distribute_tensor(parameter.detach(), mesh, [Replicate()], **unsent(distribute_tensor))
                known[id(parameter)] = nn.Parameter(whole, requires_grad=parameter.requires_grad)
            module.register_parameter(name, known[id(parameter)])
    allow_plain_tensors()
    teach_losses()
    _hook_attention(model, mesh, axes.strategy.attention)


def cut(tensor: object, axes: Axes) -> Any:
    """Return this rank's tokens of each sequence, as a DTensor of the whole sequences."""
    from torch.distributed.tensor import DTensor, Shard

    if not isinstance(tensor, torch.Tensor) or tensor.dim() < 2:
        return tensor
    return DTensor.from_local(cut_plain(tensor, axes), axes.mesh("context"), [Shard(1)], run_check=False)


def cut_plain(tensor: object, axes: Axes) -> Any:
    """Return this rank's tokens of each sequence, as a plain tensor."""
    number = axes.sizes["context"]
    if not isinstance(tensor, torch.Tensor) or tensor.dim() < 2:
        return tensor
    if tensor.size(1) % number:
        raise StrategyError(
            f"a sequence has {tensor.size(1)} tokens, which is not a multiple of the context axis, {number}",
            hint=f"use sequences of a multiple of {number} tokens, or context={divisor_of(tensor.size(1), number)}",
        )
    return tensor.chunk(number, 1)[axes.place("context")].contiguous()


def leave(output: object) -> Any:
    from torch.distributed.tensor import DTensor, Shard

    if not isinstance(output, DTensor):
        return output
    if not output.placements[0].is_shard(1):
        output = output.redistribute(placements=[Shard(1)])
    return output.to_local()


def _hook_attention(model: nn.Module, mesh: object, kind: str) -> None:
    """Replace PyTorch's attention, also under the names that it has in the model's modules."""
    original = nn.functional.scaled_dot_product_attention
    if getattr(original, "is_for_context", False):
        return
    ours = make(original, mesh, kind)
    why = "Attention sees the tokens of all ranks."
    for name in {type(module).__module__ for module in model.modules()}:
        namespace = vars(sys.modules[name]) if name in sys.modules else {}
        for key in [key for key, value in namespace.items() if value is original]:
            patches.replace(sys.modules[name], key, ours, why=why)
    patches.replace(nn.functional, "scaled_dot_product_attention", ours, why=why)
