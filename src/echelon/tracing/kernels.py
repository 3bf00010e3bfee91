"""Operations that keep other tensors on a device than on a CPU: attention, dropout, recurrent layers, autocast."""

from collections.abc import Callable
from functools import wraps
from typing import Any

import torch
from torch.nn import functional

from ..pytorch import internals
from ..train import patches
from .places import is_device

FakeTensor: Any = internals.fake_tensors().FakeTensor

_WHY = "On a device this operation keeps other tensors for backward() than on a CPU."
_WHOLE = "A device counts whole numbers too."
_ANY_KIND = "Without data PyTorch multiplies groups of matrices only in bfloat16."
_FULL = (  # https://docs.pytorch.org/docs/stable/amp.html: CUDA ops that autocast to float32
    "softmax", "log_softmax", "softmin", "layer_norm", "group_norm", "nll_loss", "mse_loss", "l1_loss", "huber_loss",
    "smooth_l1_loss", "kl_div", "cosine_similarity", "cosine_embedding_loss", "hinge_embedding_loss", "normalize",
    "binary_cross_entropy_with_logits", "margin_ranking_loss", "poisson_nll_loss", "triplet_margin_loss", "softplus",
)  # fmt: skip
_FULL_OF_TENSORS = (
    "softmax", "log_softmax", "exp", "expm1", "log", "log10", "log2", "log1p", "pow", "rsqrt", "reciprocal", "sum",
    "prod", "cumsum", "cumprod", "norm", "cosh", "sinh", "tan", "acos", "asin", "erfinv", "renorm",
)  # fmt: skip
_CUDNN_PLANES = 6
"""cuDNN keeps, for each step and layer of an LSTM, four gates, the cell and its tanh; fewer for others."""


def install() -> None:
    patches.replace(functional, "scaled_dot_product_attention", _attention, why=_WHY)
    patches.replace(functional, "dropout", _dropout, why=_WHY)
    patches.replace(torch, "dropout", _dropout, why=_WHY)
    patches.replace(functional, "cross_entropy", _cross_entropy(functional.cross_entropy), why=_WHY)
    for name in _FULL:
        patches.replace(functional, name, _in_full(getattr(functional, name)), why=_WHY)
    for name in _FULL_OF_TENSORS:
        for owner in (torch, torch.Tensor):
            if hasattr(owner, name):
                patches.replace(owner, name, _in_full(getattr(owner, name)), why=_WHY)
    counts = torch.histc
    patches.replace(torch, "histc", lambda x, *args, **kwargs: counts(x.float(), *args, **kwargs), why=_WHOLE)
    functions = internals.rnn_functions()
    for name, planes in (("lstm", _CUDNN_PLANES), ("gru", 5), ("rnn_tanh", 1), ("rnn_relu", 1)):
        patches.replace(functions, name, _recurrent(getattr(functions, name), planes), why=_WHY)
    for owner, name in ((functional, "grouped_mm"), (torch, internals.GROUPED_MM)):
        if hasattr(owner, name):
            patches.replace(owner, name, _grouped(getattr(owner, name)), why=_ANY_KIND)
    _let_autocast_be_that_of_the_cpu()


def _in_full(original: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that gets float32 under autocast."""

    @wraps(original)
    def compute(first: object, *args: object, **kwargs: object) -> Any:
        if torch.is_autocast_enabled("cpu"):
            first, args = _full(first), tuple(map(_full, args))
        return original(first, *args, **kwargs)

    return compute


def _full(value: Any) -> Any:
    return value.float() if _is_half(value) else value


def _is_half(value: object) -> bool:
    return isinstance(value, torch.Tensor) and value.dtype in (torch.float16, torch.bfloat16)


def _cross_entropy(original: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that keeps logarithms in half precision under autocast, and its loss's input in float32.

    PyTorch's cross_entropy_loss() names the type of its logits to log_softmax(), and autocast on a device respects
    that; autocast on a CPU casts the logits first.
    """

    @wraps(original)
    def compute(
        logits: torch.Tensor, target: torch.Tensor, weight: torch.Tensor | None = None, size_average: Any = None,
        ignore_index: int = -100, reduce: Any = None, reduction: str = "mean", label_smoothing: float = 0.0,
    ) -> Any:  # fmt: skip
        rest = (weight, size_average, ignore_index, reduce, reduction)
        if not (torch.is_autocast_enabled("cpu") and _is_half(logits)) or target.is_floating_point():
            return original(logits, target, *rest, label_smoothing)
        classes = min(1, logits.dim() - 1)
        logarithms = torch.ops.aten.log_softmax.int(logits, classes, logits.dtype)
        loss = functional.nll_loss(logarithms, target, *rest)
        if not label_smoothing:
            return loss
        smooth = -logarithms.sum(classes, dtype=torch.float32)
        smooth = smooth if reduction == "none" else smooth.mean()
        return (1 - label_smoothing) * loss + label_smoothing / logits.shape[classes] * smooth

    return compute


def _let_autocast_be_that_of_the_cpu() -> None:
    kind = torch.amp.autocast_mode.autocast
    begin, is_enabled, dtype_of = kind.__init__, torch.is_autocast_enabled, torch.get_autocast_dtype

    def init(self: Any, device_type: str, dtype: Any = None, *args: Any, **kwargs: Any) -> None:
        usual = torch.float16 if is_device(device_type) else torch.bfloat16
        begin(self, "cpu", dtype or usual, *args, **kwargs)

    patches.replace(kind, "__init__", init, why=_WHY)
    patches.replace(torch, "is_autocast_enabled", lambda *_: is_enabled("cpu"), why=_WHY)
    patches.replace(torch, "get_autocast_dtype", lambda *_: dtype_of("cpu"), why=_WHY)
    if hasattr(torch, "get_autocast_gpu_dtype"):
        patches.replace(torch, "get_autocast_gpu_dtype", lambda: dtype_of("cpu"), why=_WHY)
    scaler = torch.amp.GradScaler
    patches.replace(scaler, internals.SCALER_STEP, lambda _, optimizer, __, *a, **k: optimizer.step(*a, **k), why=_WHY)
    patches.replace(scaler, "unscale_", lambda *_: None, why=_WHY)
    patches.replace(scaler, "update", lambda *_, **__: None, why=_WHY)
    patches.replace(scaler, "step", lambda _, optimizer, *a, **k: optimizer.step(*a, **k), why=_WHY)


def _dropout(x: torch.Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> torch.Tensor:
    """Keep a mask of one byte for each element, as the kernel of a device does."""
    if not training or p == 0:
        return x
    dropped: torch.Tensor = torch.native_dropout(x, p, True)[0]
    return x.copy_(dropped) if inplace else dropped


class _Attention(torch.autograd.Function):
    """Attention by a kernel that keeps its inputs, its result and a number for each row of the scores."""

    @staticmethod
    def forward(ctx: Any, query: Any, key: Any, value: Any, mask: Any) -> Any:
        *outer, length, width = query.shape
        if query.dtype != torch.float32 and mask is None and value.shape[-1] == width:
            result = torch.empty_like(query)  # flash attention keeps the order of the query's dims
        else:  # the memory-efficient kernel writes the heads of each position one after the other
            result = query.new_empty((*outer[:-1], length, outer[-1], value.shape[-1])).transpose(-3, -2)
        sums = query.new_empty((*outer, -(-length // 32) * 32), dtype=torch.float32)
        ctx.save_for_backward(query, key, value, mask, result, sums)
        return result

    @staticmethod
    def backward(ctx: Any, *_: object) -> Any:
        query, key, value, mask, __, sums = ctx.saved_tensors
        scratch = torch.empty_like(sums)
        grads = [torch.empty_like(one) for one in (query, key, value)]
        del scratch
        of_mask = torch.empty_like(mask) if mask is not None and ctx.needs_input_grad[3] else None
        return (*grads, of_mask)


def _attention(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, attn_mask: torch.Tensor | None = None,
    dropout_p: float = 0.0, is_causal: bool = False, *_: object, **__: object,
) -> torch.Tensor:  # fmt: skip
    """Compute attention with the memory of the kernel that a device takes."""
    if torch.is_autocast_enabled("cpu"):
        half = torch.get_autocast_dtype("cpu")
        query, key, value = (tensor.to(half) for tensor in (query, key, value))
    if query.dim() < 3:
        query, key, value = (tensor.unsqueeze(0) for tensor in (query, key, value))
    if query.dtype == torch.float32 and query.shape[-3] != key.shape[-3]:
        return _plain_attention(query, key, value, attn_mask, dropout_p, is_causal)
    mask = attn_mask
    if mask is not None and mask.dtype == torch.bool:
        mask = torch.zeros_like(mask, dtype=query.dtype)  # the kernels add numbers
    result: torch.Tensor = _Attention.apply(query, key, value, mask)  # type: ignore[no-untyped-call]
    return result


def _plain_attention(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: Any, dropout: float, is_causal: bool
) -> torch.Tensor:
    """Compute all scores: in float32 no kernel takes queries with more heads than keys (ATen's attention.cpp)."""
    groups = query.shape[-3] // key.shape[-3]
    key, value = key.repeat_interleave(groups, -3), value.repeat_interleave(groups, -3)
    scale = query.shape[-1] ** -0.25
    if is_causal:
        mask = query.new_zeros((query.shape[-2], key.shape[-2]))
    elif mask is not None and mask.dtype == torch.bool:
        mask = torch.zeros_like(mask, dtype=query.dtype)
    scores = (query * scale) @ (key * scale).transpose(-2, -1)
    shares = torch.softmax(scores if mask is None else scores.add_(mask), -1)
    del scores
    return _dropout(shares, dropout) @ value


def _recurrent(original: Callable[..., Any], planes: int) -> Callable[..., Any]:
    """Return a recurrent layer as cuDNN computes it: one kernel for all steps, which keeps what backward() needs."""

    def compute(x: Any, *args: Any) -> Any:
        is_packed = isinstance(args[2], (list, tuple))  # after the numbers of rows and the states
        if not isinstance(x, FakeTensor):
            return original(x, *args)
        states, weights, _, num_layers, *_, is_both = args[1:] if is_packed else args[:-1]
        states = states if isinstance(states, (list, tuple)) else (states,)
        if torch.is_autocast_enabled("cpu"):
            half = torch.get_autocast_dtype("cpu")
            x, states, weights = (
                x.to(half),
                [tensor.to(half) for tensor in states],
                [tensor.to(half) for tensor in weights],
            )
        how = num_layers, is_both, planes, len(states)
        return _Recurrent.apply(x, states[0], how, *weights)  # type: ignore[no-untyped-call]

    return compute


class _Recurrent(torch.autograd.Function):
    """A recurrent layer whose kernel keeps its inputs, its results and a reserve."""

    @staticmethod
    def forward(ctx: Any, x: Any, state: Any, how: tuple[Any, ...], *weights: object) -> Any:
        num_layers, is_both, planes, num_states = how
        num_directions = 2 if is_both else 1
        hidden, num_rows = state.shape[-1], x.numel() // x.shape[-1]
        result = x.new_empty((*x.shape[:-1], hidden * num_directions))
        reserve = x.new_empty((num_layers * num_directions * num_rows * hidden * planes,))
        ends = [torch.empty_like(state) for _ in range(num_states)]
        ctx.save_for_backward(x, state, result, reserve, *weights)
        return (result, *ends)

    @staticmethod
    def backward(ctx: Any, *_: object) -> Any:
        x, state, __, __, *weights = ctx.saved_tensors
        flat = x.new_empty((sum(one.numel() for one in weights),))
        parts, at = [], 0
        for one in weights:
            parts.append(flat[at : at + one.numel()].view(one.shape))
            at += one.numel()
        return (torch.empty_like(x), torch.empty_like(state), None, *parts)


def _grouped(original: Callable[..., Any]) -> Callable[..., Any]:
    """Return the products of groups of matrices, as in mixtures of experts, for all kinds of numbers."""

    @wraps(original)
    def compute(first: Any, second: object, offs: object = None, *args: object, **kwargs: Any) -> Any:
        if first.dtype == torch.bfloat16 or not isinstance(first, FakeTensor):
            return original(first, second, offs, *args, **kwargs)
        return _Grouped.apply(first, second, offs)  # type: ignore[no-untyped-call]

    return compute


class _Grouped(torch.autograd.Function):
    """Products of groups: rows of a matrix, or its columns, are cut into groups where `offs` says."""

    @staticmethod
    def forward(ctx: Any, first: Any, second: Any, offs: Any) -> Any:
        ctx.save_for_backward(first, second, offs)
        rows, columns = first.shape[-2], second.shape[-1]
        if first.dim() == second.dim():
            return first.new_empty((len(offs) if first.dim() == 2 else len(first), rows, columns))
        return first.new_empty((rows, columns))

    @staticmethod
    def backward(ctx: Any, *_: object) -> Any:
        first, second, __ = ctx.saved_tensors
        return torch.empty_like(first), torch.empty_like(second), None
