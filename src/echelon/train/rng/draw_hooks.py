"""Hooks of PyTorch's functions that draw random numbers: inside of a model they draw the numbers of one device."""

import math
import re
from contextlib import AbstractContextManager
from functools import partial
from typing import Any, NamedTuple

import torch

from ...pytorch import internals
from .. import patches
from ..function_types import Args, Function, Kwargs
from ..scaling_error import ScalingError
from ..wire import device as devices
from ..wire import exchange
from .draws import Draws, RowsPlace

BY_DEFAULT, ON_REQUEST, NEVER = "by default", "--same-random", "never"
_ALPHA = 1.7580993408473766
"""The value to which SELU saturates, with the opposite sign."""
_DRAWN = re.compile(r"aten::\w*(rand|dropout|normal|uniform|bernoulli|multinomial)")
_OF_FEATURES = {
    "dropout1d": 3,
    "dropout2d": 3,
    "dropout3d": 5,
    "feature_dropout": 2,
    "feature_alpha_dropout": 2,
}
"""Functions that drop whole features, and the least number of dims with which the first dim holds the samples."""


def _dropout(draws: Draws, original: Function, *, name: str) -> Function:
    least = _OF_FEATURES.get(name.rstrip("_"), 0)

    def draw(input: torch.Tensor, p: float = 0.5, training: Any = None, inplace: bool = False, **kwargs: Any) -> object:  # noqa: A002
        training = kwargs.pop("train", "alpha" not in name) if training is None else training
        is_random = training and 0 < p < 1 and draws.leads and type(input) is torch.Tensor and input.dim() >= least
        place = draws.place(input.shape, is_sure=True) if is_random else None
        if place is None:
            extra = (inplace,) if inplace else ()
            return original(input, p, training, *extra)
        features = input[(slice(None),) * 2 + (slice(1),) * (input.dim() - 2)] if least else input
        with torch.no_grad():
            factor, shift = _noise(draws, original, features, place, p, is_alpha="alpha" in name)
        result = input.mul_(factor) if inplace or name.endswith("_") else input * factor
        return result if shift is None else result.add_(shift)

    return draw


def _noise(
    draws: Draws, original: Function, like: torch.Tensor, place: RowsPlace, p: float, *, is_alpha: bool
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Return the factor and the shift of each element, by the formulas of PyTorch's Dropout.cpp."""
    whole = draws.like_whole(like, place)
    if devices.is_accelerator(like.device) and original.__name__ == "dropout":
        return place.cut(original(whole.fill_(1.0), p, True)), None  # the kernel draws in its own order
    kept = place.cut(_ORIGINALS["bernoulli_"](whole, 1 - p))
    if not is_alpha:
        return kept.div_(1 - p), None
    scale = 1 / math.sqrt((_ALPHA * _ALPHA * p + 1) * (1 - p))
    shift = (kept - 1).mul_(_ALPHA * scale).add_(_ALPHA * scale * p)
    return kept.mul_(scale), shift


def _fill(draws: Draws, original: Function) -> Function:
    def draw(self: Any, *args: object, **kwargs: object) -> Any:
        is_plain = draws.leads and type(self) is torch.Tensor and not self.requires_grad
        place = draws.place(self.shape) if is_plain else None
        if place is None:
            return original(self, *args, **kwargs)
        args, kwargs = _with_whole_parameters(self, place, args, kwargs)
        with torch.no_grad():
            self.copy_(place.cut(original(draws.like_whole(self, place), *args, **kwargs)))
        return self

    return draw


def _with_whole_parameters(self: torch.Tensor, place: RowsPlace, args: Args, kwargs: Kwargs) -> Any:
    """Return a distribution's parameters, which may have a value for each row, for the rows of all ranks."""

    def widen(value: object) -> object:
        if not isinstance(value, torch.Tensor) or not value.dim():
            return value
        whole = torch.full(place.whole(self.shape), 0.5, dtype=value.dtype, device=value.device)
        return place.put(value.expand(self.shape), whole)

    return [widen(one) for one in args], {key: widen(one) for key, one in kwargs.items()}


def _like(draws: Draws, original: Function) -> Function:
    def draw(input: torch.Tensor, *args: object, **kwargs: Any) -> Any:  # noqa: A002
        place = draws.place(input.shape) if draws.leads and type(input) is torch.Tensor else None
        if place is None:
            return original(input, *args, **kwargs)
        requires_grad = kwargs.pop("requires_grad", False)
        return place.cut(original(draws.like_whole(input, place), *args, **kwargs)).requires_grad_(requires_grad)

    return draw


def _bernoulli(draws: Draws, original: Function) -> Function:
    def draw(input: torch.Tensor, *args: object, **kwargs: object) -> Any:  # noqa: A002
        place = draws.place(input.shape) if draws.leads and type(input) is torch.Tensor else None
        if place is None:
            return original(input, *args, **kwargs)
        with torch.no_grad():
            return place.cut(original(place.put(input, draws.like_whole(input, place).fill_(0.5)), *args, **kwargs))

    return draw


def _multinomial(draws: Draws, original: Function) -> Function:
    def draw(input: torch.Tensor, *args: Any, **kwargs: Any) -> Any:  # noqa: A002
        is_plain = draws.leads and type(input) is torch.Tensor
        if is_plain and input.dim() == 1:  # one distribution, from which so many numbers are drawn
            size = kwargs.pop("num_samples", None)
            size, args = (args[0], args[1:]) if size is None else (size, args)
            place = draws.place((size,), is_made=True)
            if place is None:
                return original(input, size, *args, **kwargs)
            return place.cut(original(input, sum(place.rows), *args, **kwargs))
        place = draws.place(input.shape) if is_plain and input.dim() == 2 else None
        if place is None or place.dim:
            return original(input, *args, **kwargs)
        return place.cut(original(place.put(input, draws.like_whole(input, place).fill_(1.0)), *args, **kwargs))

    return draw


def _permuted(draws: Draws, original: Function) -> Function:
    """Refuse an order of the rows: on one device a row would take the place of another rank's row."""

    def draw(n: int, *args: object, **kwargs: object) -> Any:
        place = draws.place((n,), is_made=True) if draws.leads else None
        if place is not None and not draws.sites.is_listening:
            raise ScalingError(
                "the model puts the samples of its batch in another order, by torch.randperm(), and each rank has "
                "only its own samples",
                "draw the order outside of the model, where the batch is whole; or start one rank: echelon run -n 1 …",
            )
        return original(n, *args, **kwargs)

    return draw


def _normal(draws: Draws, original: Function) -> Function:
    by_shape = _made(draws, original)

    def draw(mean: torch.Tensor, std: Any = 1.0, *args: object, **kwargs: object) -> Any:
        parameters = [one for one in (mean, std) if isinstance(one, torch.Tensor)]
        if not parameters:
            return by_shape(mean, std, *args, **kwargs)
        like = parameters[0] if len(parameters) == 1 else parameters[0] + parameters[1].detach()
        place = draws.place(like.shape) if draws.leads and type(like) is torch.Tensor else None
        if place is None or kwargs.get("out") is not None:
            return original(mean, std, *args, **kwargs)
        with torch.no_grad():
            noise = torch.empty(place.whole(like.shape), dtype=like.dtype, device=like.device)
            return place.cut(_ORIGINALS["normal_"](noise, **kwargs)).mul_(std).add_(mean)

    return draw


def _made(draws: Draws, original: Function) -> Function:
    """Draw a new tensor of some size: torch.rand(3, 4), torch.randint(5, (3, 4)), torch.normal(0, 1, (3, 4))."""

    def draw(*args: object, **kwargs: Any) -> Any:
        sizes, rest = _sizes(args, kwargs) if draws.leads and kwargs.get("out") is None else ((), ())
        place = draws.place(sizes, is_made=True) if sizes else None
        if place is None:
            return original(*args, **kwargs)
        options = {**kwargs, "size": place.whole(sizes)}
        requires_grad = options.pop("requires_grad", False)
        return place.cut(original(*rest, **options)).requires_grad_(requires_grad)

    return draw


def _sizes(args: Args, kwargs: Kwargs) -> tuple[tuple[int, ...], tuple[object, ...]]:
    if "size" in kwargs:
        return tuple(kwargs["size"]), args
    if args and isinstance(args[-1], (tuple, list)):
        return tuple(args[-1]), args[:-1]
    return args, ()


def _gathered(draws: Draws, original: Function, *, finish: Function = lambda _input, drawn: drawn) -> Function:
    """Draw with the gathered parameters of all ranks, for distributions whose rows consume unequally many numbers."""

    def draw(input: torch.Tensor, *args: object, **kwargs: object) -> Any:  # noqa: A002
        is_plain = draws.leads and type(input) is torch.Tensor
        place = draws.place(input.shape) if is_plain and _is_random(args, kwargs, original) else None
        if place is None:
            return original(input, *args, **kwargs)
        own = input.detach()
        args = tuple(_gather(one, input, place) if isinstance(one, torch.Tensor) else one for one in args)
        with torch.no_grad():
            return_ = place.cut(original(_gather(own, input, place), *args, **kwargs))
        return finish(input, return_)

    return draw


def _gather(own: torch.Tensor, like: torch.Tensor, place: RowsPlace) -> torch.Tensor:
    with torch.no_grad():
        return exchange.gather(own.detach().expand(like.shape).contiguous(), place.world, place.rows, place.dim)


def _is_random(args: tuple[object, ...], kwargs: dict[str, object], original: Function) -> bool:
    """Say whether a function draws with these arguments; only rrelu() may draw nothing."""
    return original.__name__ != "rrelu" or bool(kwargs.get("training", args[2] if len(args) > 2 else False))


class _Gamma(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, concentration: torch.Tensor, sample: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(concentration, sample)
        return sample.view_as(sample)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> object:
        return gradients[0] * internals.gamma_gradient(*ctx.saved_tensors), None


def _sloped(x: torch.Tensor, drawn: torch.Tensor) -> torch.Tensor:
    return x * torch.where(x > 0, torch.ones_like(x), drawn / x.detach()).detach().nan_to_num(1.0)


def _attention(draws: Draws, original: Function) -> Function:
    def attend(
        query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, attn_mask: Any = None, dropout_p: float = 0.0,
        is_causal: bool = False, **options: Any,
    ) -> object:  # fmt: skip
        is_random = bool(dropout_p) and draws.is_inside and type(query) is torch.Tensor
        if is_random and devices.is_accelerator(query.device):
            dropout_p = 0.0 if draws.is_compared else dropout_p
            with draws.own_stream("dropout inside scaled_dot_product_attention on a GPU"):
                return original(query, key, value, attn_mask, dropout_p, is_causal, **options)
        if not is_random or not draws.leads:
            return original(query, key, value, attn_mask, dropout_p, is_causal, **options)
        return _attend(query, key, value, attn_mask, dropout_p, is_causal, **options)

    return attend


def _attend(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: torch.Tensor | None, p: float,
    is_causal: bool, *, scale: float | None = None, enable_gqa: bool = False,
) -> torch.Tensor:  # fmt: skip
    """Compute attention with dropout by its formula, as PyTorch does on a CPU."""
    if enable_gqa:
        key, value = (one.repeat_interleave(query.size(-3) // one.size(-3), -3) for one in (key, value))
    scores = query @ key.transpose(-2, -1) * (1 / math.sqrt(query.size(-1)) if scale is None else scale)
    if is_causal:
        mask = torch.ones(query.size(-2), key.size(-2), dtype=torch.bool, device=query.device).tril()
    if mask is not None:
        scores = scores.masked_fill(~mask, -math.inf) if mask.dtype == torch.bool else scores + mask
    return torch.nn.functional.dropout(scores.softmax(-1), p) @ value


def _recurrent(draws: Draws, original: Function) -> Function:
    def compute(*args: Any, **kwargs: object) -> Any:
        at = next((place for place, one in enumerate(args) if isinstance(one, float)), None)
        if at is None or not _drops(*args[at - 1 : at + 2]):
            return original(*args, **kwargs)
        if draws.is_inside and draws.is_compared:
            return original(*args[:at], 0.0, *args[at + 1 :], **kwargs)
        with draws.own_stream(f"dropout between the layers of {original.__name__}()"):
            return original(*args, **kwargs)

    return compute


def _drops(num_layers: int, p: float, training: bool) -> bool:
    """Say whether a recurrent layer drops anything: dropout is between its layers, so a single layer has none."""
    return num_layers > 1 and bool(p) and training


def _left_to_ranks(draws: Draws, original: Function) -> Function:
    def draw(*args: object, **kwargs: object) -> Any:
        if not draws.is_inside or not _is_random(args[1:], kwargs, original):
            return original(*args, **kwargs)
        with draws.own_stream(f"{original.__name__}(); use --same-random to draw as one device does"):
            return original(*args, **kwargs)

    return draw


class DrawRow(NamedTuple):
    """Functions that share one way to draw."""

    module: str
    names: tuple[str, ...]
    when: str
    wrap: Function


_DROPOUTS = ("dropout", "alpha_dropout", "feature_alpha_dropout", "dropout1d", "dropout2d", "dropout3d")
_DROPOUTS_OF_TORCH = ("dropout", "dropout_", "alpha_dropout", "feature_dropout", "feature_alpha_dropout")
_FILLS = ("normal_", "uniform_", "bernoulli_", "exponential_", "random_", "cauchy_", "geometric_", "log_normal_")
TABLE: tuple[DrawRow, ...] = (
    *(DrawRow("torch.nn.functional", (name,), BY_DEFAULT, partial(_dropout, name=name)) for name in _DROPOUTS),
    *(DrawRow("torch", (name,), BY_DEFAULT, partial(_dropout, name=name)) for name in _DROPOUTS_OF_TORCH),
    DrawRow("torch", ("rand_like", "randn_like", "randint_like"), BY_DEFAULT, _like),
    DrawRow("torch", ("rand", "randn", "randint"), BY_DEFAULT, _made),
    DrawRow("torch", tuple("Tensor." + name for name in _FILLS), BY_DEFAULT, _fill),
    DrawRow("torch", ("normal",), BY_DEFAULT, _normal),
    DrawRow("torch", ("bernoulli", "Tensor.bernoulli"), BY_DEFAULT, _bernoulli),
    DrawRow("torch", ("multinomial", "Tensor.multinomial"), BY_DEFAULT, _multinomial),
    DrawRow("torch", ("randperm",), BY_DEFAULT, _permuted),
    DrawRow("torch.nn.functional", ("scaled_dot_product_attention",), BY_DEFAULT, _attention),
    DrawRow("torch", ("poisson", "binomial", internals.DIRICHLET), ON_REQUEST, _gathered),
    DrawRow("torch", (internals.GAMMA,), ON_REQUEST, partial(_gathered, finish=_Gamma.apply)),
    DrawRow("torch", ("rrelu",), ON_REQUEST, partial(_gathered, finish=_sloped)),
    DrawRow(internals.RNN_FUNCTIONS, ("lstm", "gru", "rnn_tanh", "rnn_relu"), NEVER, _recurrent),
)  # fmt: skip
"""How each function draws the numbers of one device; docs/scale.md lists the costs."""
_CHECKPOINT = "checkpoint"
_WHY = "What a model draws for a batch is what one device draws."
_ORIGINALS: dict[str, Function] = {}


def install(draws: Draws) -> None:
    hooks = patches.Hooks()
    for row in TABLE:
        wrap = row.wrap if row.when != ON_REQUEST or draws.takes_all else _left_to_ranks
        for name in row.names:
            hooks.replace(row.module, name, partial(_noted, name, partial(wrap, draws)), why=_WHY)
    hooks.replace("torch.utils.checkpoint", _CHECKPOINT, partial(_checkpoint, draws), why=_WHY)
    hooks.apply()
    for name, function in (("RNN_TANH", "rnn_tanh"), ("RNN_RELU", "rnn_relu")):  # held by name
        new = getattr(internals.rnn_functions(), function)
        patches.replace(internals.rnn_kinds(), name, new, why=_WHY, name=f"torch.nn.{name}")
    _leave_to_compilers(draws, hooks)


def _checkpoint(draws: Draws, original: Function) -> Function:
    """Let a part of a model that backward() computes again draw for the same rows."""

    def checkpoint(function: Function, *args: object, **kwargs: object) -> Any:
        leads = draws.leads
        if leads is None:
            return original(function, *args, **kwargs)

        def again(*inputs: object, **options: object) -> object:
            with draws.of(leads):
                return function(*inputs, **options)

        return original(again, *args, **kwargs)

    return checkpoint


def _noted(name: str, wrap: Function, original: Function) -> Function:
    _ORIGINALS.setdefault(name.rpartition(".")[2], original)
    new: Function = wrap(original)
    return new


def _leave_to_compilers(draws: Draws, hooks: patches.Hooks) -> None:
    """Let compiled code call PyTorch's own functions; each rank then draws its own numbers."""
    script = torch.jit.script

    def put_back() -> AbstractContextManager[None]:
        return patches.set_aside(patch for patch in hooks.patches if patch.attribute != _CHECKPOINT)

    def compile_script(*args: Any, **kwargs: object) -> object:
        with put_back():
            compiled = script(*args, **internals.one_frame_up(kwargs))
            if _DRAWN.search(str(getattr(compiled, "inlined_graph", ""))):
                draws.stop("models, because torch.jit.script has compiled the functions that draw them")
            return compiled

    why = "Code that is compiled draws by PyTorch's own functions."
    patches.replace(torch.jit, "script", compile_script, why=why)
    draws.put_back = put_back
