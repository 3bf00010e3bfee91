"""Compute a model again without side effects: with copies of its weights, buffers and attributes, without dropout."""

import io
from collections import OrderedDict
from contextlib import ExitStack, contextmanager, nullcontext, redirect_stderr, redirect_stdout
from functools import wraps
from typing import Any, Callable, ContextManager, Dict, Iterator

import torch
from torch import nn

from ...pytorch import internals
from .. import patches
from ..gather import is_sharded
from ..global_tensors.tensors import GlobalTensor
from . import dropouts
from .kept import Kept


class Copies:
    """A model's own weights, and the copies that take their place in a computation."""

    def __init__(self, module: nn.Module) -> None:
        self._modules = [one for one in module.modules() if not isinstance(one, torch.jit.ScriptModule)]
        self.is_spread = any(is_sharded(one) for one in module.parameters())
        self.names = {id(one): name for name, one in module.named_parameters()}
        self.weights: Dict[int, torch.Tensor] = {}
        """The copies by the id of the weights, in the model's order."""

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """Give the model copies for the duration of a block, and then undo every change that it made to itself."""
        kept = Kept(self._modules)
        self.weights = {}
        self._put_copies()
        try:
            yield
        finally:
            kept.put_back()

    @torch.no_grad()
    def _put_copies(self) -> None:
        copies: Dict[int, torch.Tensor] = {}
        for module in self._modules:
            for name, weight in internals.weights(module).items() if not self.is_spread else ():
                if weight is not None:
                    module._parameters[name] = self._copy_of_weight(weight)
            for content in (internals.buffers(module), module.__dict__):
                for name, tensor in list(content.items()):
                    if type(tensor) is torch.Tensor:
                        content[name] = copies.setdefault(id(tensor), tensor.detach().clone())
            for name in internals.HOOKS:
                hooks = module.__dict__.get(name)
                if hooks:
                    module.__dict__[name] = OrderedDict(
                        (key, hook) for key, hook in hooks.items() if _is_of_torch(hook)
                    )

    def _copy_of_weight(self, weight: nn.Parameter) -> Any:
        if id(weight) not in self.weights:
            self.weights[id(weight)] = nn.Parameter(weight.detach().clone(), requires_grad=weight.requires_grad)
        return self.weights[id(weight)]


@contextmanager
def without_chance(*, are_statistics_whole: bool) -> Iterator[None]:
    """Switch off dropout and output; let BatchNorm normalize each sample alone if it has a rank's own statistics."""
    with ExitStack() as stack:
        stack.callback(dropouts.switch_off())
        batch_norm = nn.functional.batch_norm
        norm = _norm_of_copies(batch_norm) if are_statistics_whole else _norm_of_each(batch_norm)
        why = "A model that is computed again changes no statistics of the script's."
        stack.enter_context(patches.replaced(nn.functional, "batch_norm", norm, why=why))
        stack.enter_context(redirect_stdout(io.StringIO()))
        stack.enter_context(redirect_stderr(io.StringIO()))
        yield
        torch.clear_autocast_cache()


def uncompiled(is_compiled: bool) -> ContextManager[Any]:
    """Return a context in which compiled code is computed by Python."""
    return torch.compiler.set_stance("force_eager") if is_compiled else nullcontext()


def detached(tensor: torch.Tensor) -> torch.Tensor:
    """Return a plain tensor without the graph that it comes from."""
    if isinstance(tensor, (GlobalTensor, nn.Parameter)):
        return tensor
    return tensor.detach().requires_grad_(tensor.requires_grad)


def fresh(tensor: torch.Tensor) -> torch.Tensor:
    """Return a copy that a model may change; it is a leaf that requires a gradient if its tensor does."""
    if isinstance(tensor, nn.Parameter):
        return tensor
    return tensor.detach().clone().requires_grad_(tensor.requires_grad)


def _norm_of_copies(original: Callable[..., Any]) -> Callable[..., Any]:
    """Return a BatchNorm that updates copies of its running statistics, wherever a script keeps them."""

    @wraps(original)
    def batch_norm(x: Any, mean: Any = None, variance: Any = None, *args: Any, **kwargs: Any) -> Any:
        return original(x, _clone(mean), _clone(variance), *args, **kwargs)

    return batch_norm


def _norm_of_each(original: Callable[..., Any]) -> Callable[..., Any]:
    """Return a BatchNorm that uses each sample's own statistics; the statistics of the batch have their own options."""

    @wraps(original)
    def batch_norm(
        x: Any, mean: Any, variance: Any, weight: Any = None, bias: Any = None, training: bool = False,
        momentum: float = 0.1, eps: float = 1e-5,
    ) -> Any:  # fmt: skip
        if not training:
            return original(x, _clone(mean), _clone(variance), weight, bias, training, momentum, eps)
        dims, shape = list(range(1, x.dim())), [1, -1] + [1] * (x.dim() - 2)
        result = (x - x.mean(dims, keepdim=True)) * torch.rsqrt(x.var(dims, unbiased=False, keepdim=True) + eps)
        result = result if weight is None else result * weight.view(shape)
        return (result if bias is None else result + bias.view(shape)).to(x.dtype)

    return batch_norm


def _clone(tensor: Any) -> Any:
    return None if tensor is None else tensor.detach().clone()


def _is_of_torch(hook: Any) -> bool:
    """Say whether a hook belongs to PyTorch, such as spectral norm's; a script's own hook may record its inputs."""
    hook = getattr(hook, "func", hook)  # of functools.partial
    where = getattr(hook, "__module__", None) or type(hook).__module__
    return str(where).partition(".")[0] == "torch"
