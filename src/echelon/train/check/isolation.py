"""Compute a model again without side effects: with copies of its weights, buffers and attributes, without dropout."""

import io
import itertools
import sys
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, redirect_stderr, redirect_stdout
from functools import wraps
from typing import Any

import torch
from torch import nn

from ...pytorch import internals
from .. import patches
from ..global_tensors.tensors import GlobalTensor
from ..wire import lines
from ..wire.gather import is_sharded


class Copies:
    """A model's own weights, and the copies that take their place in a computation."""

    def __init__(self, module: nn.Module) -> None:
        self._modules = [one for one in module.modules() if not isinstance(one, torch.jit.ScriptModule)]
        self.is_spread = any(is_sharded(one) for one in module.parameters())
        self.names = {id(one): name for name, one in module.named_parameters()}
        self.weights: dict[int, torch.Tensor] = {}
        """The copies by the id of the weights, in the model's order."""

    @contextmanager
    def in_place(self) -> Iterator[Callable[[], list[str]]]:
        """Give the model copies for the duration of a block, and then undo every change that it made to itself.

        The block gets a function that names what has changed.
        """
        kept = ScriptSnapshot(self._modules)
        self.weights = {}
        self._put_copies()
        try:
            yield ScriptSnapshot(self._modules).changed
        finally:
            kept.put_back()

    @torch.no_grad()
    def _put_copies(self) -> None:
        copies: dict[int, torch.Tensor] = {}
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
        _apart.append(True)
        stack.callback(_apart.pop)
        stack.callback(switch_off())
        batch_norm = nn.functional.batch_norm
        norm = _norm_of_copies(batch_norm) if are_statistics_whole else _norm_of_each(batch_norm)
        why = "A model that is computed again changes no statistics of the script's."
        stack.enter_context(patches.replaced(nn.functional, "batch_norm", norm, why=why))
        stack.enter_context(redirect_stdout(io.StringIO()))
        stack.enter_context(redirect_stderr(io.StringIO()))
        yield
        torch.clear_autocast_cache()


_apart: list[bool] = []


def is_apart() -> bool:
    """Say whether a model is computed once more now, to compare it."""
    return bool(_apart)


def uncompiled(is_compiled: bool) -> AbstractContextManager[object]:
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


def _norm_of_copies(original: Callable[..., object]) -> Callable[..., object]:
    """Return a BatchNorm that updates copies of its running statistics, wherever a script keeps them."""

    @wraps(original)
    def batch_norm(x: object, mean: object = None, variance: object = None, *args: object, **kwargs: object) -> Any:
        return original(x, _clone(mean), _clone(variance), *args, **kwargs)

    return batch_norm


def _norm_of_each(original: Callable[..., object]) -> Callable[..., object]:
    """Return a BatchNorm that uses each sample's own statistics; the statistics of the batch have their own options."""

    @wraps(original)
    def batch_norm(
        x: torch.Tensor, mean: object, variance: torch.Tensor, weight: Any = None, bias: Any = None,
        training: bool = False, momentum: float = 0.1, eps: float = 1e-5,
    ) -> Any:  # fmt: skip
        if not training:
            return original(x, _clone(mean), _clone(variance), weight, bias, training, momentum, eps)
        dims, shape = list(range(1, x.dim())), [1, -1] + [1] * (x.dim() - 2)
        result = (x - x.mean(dims, keepdim=True)) * torch.rsqrt(x.var(dims, unbiased=False, keepdim=True) + eps)
        result = result if weight is None else result * weight.view(shape)
        return (result if bias is None else result + bias.view(shape)).to(x.dtype)

    return batch_norm


def _clone(tensor: Any) -> object:
    return None if tensor is None else tensor.detach().clone()


def _is_of_torch(hook: object) -> bool:
    """Say whether a hook belongs to PyTorch, such as spectral norm's; a script's own hook may record its inputs."""
    hook = getattr(hook, "func", hook)  # of functools.partial
    where = getattr(hook, "__module__", None) or type(hook).__module__
    return str(where).partition(".")[0] == "torch"


_DROPOUTS = ("dropout", "alpha_dropout", "feature_alpha_dropout", "dropout1d", "dropout2d", "dropout3d")


def switch_off() -> Callable[[], None]:
    """Switch dropout off; return a function that switches it on again."""
    functional = nn.functional
    attention = _attention_without_dropout(functional.scaled_dot_product_attention)
    functions = {**dict.fromkeys(_DROPOUTS, _without_dropout), "scaled_dot_product_attention": attention}
    why = "Steps are compared without dropout: each rank would drop other elements."
    installed = [patches.replace(functional, name, function, why=why) for name, function in functions.items()]

    def switch_on() -> None:
        while installed:
            installed.pop().undo()

    return switch_on


def _without_dropout(tensor: torch.Tensor, *_args: object, **_kwargs: object) -> torch.Tensor:
    return tensor


def _attention_without_dropout(attention: Any) -> object:
    @wraps(attention)  # torch.compile asks functions for their names
    def compute(*args: object, **kwargs: object) -> Any:
        kwargs.pop("dropout_p", None)  # the fifth argument
        return attention(*args[:4], *((0.0,) if len(args) > 4 else ()), *args[5:], **kwargs)

    return compute


MOST_KEPT, MOST_ENTRIES = 10_000, 1_000
"""The most objects whose contents are kept, and the most entries of each that are looked at."""
_CONTAINERS = (list, OrderedDict, dict, set, deque)
"""The classes whose own methods copy and fill; an OrderedDict has an order beside that of dict."""


class ScriptSnapshot:
    """The attributes of models, the global names of the script's files with their classes, and what these hold.

    These hold lists, dicts, sets, and instances of the script's classes, also within each other. Of tensors in them,
    the versions are kept, and not the numbers.
    """

    def __init__(self, modules: Sequence[nn.Module]) -> None:
        spaces = {type(one).__module__: vars(sys.modules[type(one).__module__]) for one in modules if _is_own(one)}
        self._attributes = [(one, dict(vars(one))) for one in modules]
        self._names = [(space, dict(space)) for space in spaces.values()]
        self._contents: dict[int, tuple[object, object, str]] = {}
        self._versions: dict[int, tuple[torch.Tensor, int, str]] = {}
        for _, values, of in self._spaces():
            for name, value in values.items():
                self._keep(value, of + name)

    def _spaces(self) -> Iterator[tuple[dict[str, Any], dict[str, Any], str]]:
        """Return the attributes or names of each space, those that were kept, and what stands before such a name."""
        for module, values in self._attributes:
            yield vars(module), values, f"{type(module).__name__}."
        for space, values in self._names:
            yield space, values, ""

    def _keep(self, value: Any, name: str) -> None:
        if type(value) is torch.Tensor and not value.is_inference() and len(self._versions) < MOST_KEPT:
            self._versions[id(value)] = value, internals.version(value), name
        if id(value) in self._contents or len(self._contents) == MOST_KEPT:
            return
        if _base(value) is None:
            if isinstance(value, (nn.Module, type)) or not _is_own(value) or not hasattr(value, "__dict__"):
                return
            value = vars(value)
        self._contents[id(value)] = value, _content(value), name
        entries = value.values() if isinstance(value, dict) else value
        for entry in list(itertools.islice(entries, MOST_ENTRIES)):
            self._keep(entry, name)

    def changed(self) -> list[str]:
        """Return the names of what has changed, but for weights and buffers."""
        names = [
            of + name
            for space, values, of in self._spaces()
            for name, value in space.items()
            if value is not values.get(name)
        ]
        names += [name for value, content, name in self._contents.values() if _is_changed(value, content)]
        names += [name for tensor, version, name in self._versions.values() if internals.version(tensor) != version]
        return [name for name in dict.fromkeys(names) if name.rpartition(".")[2] not in _OF_MODULES]

    def put_back(self) -> None:
        """Undo every change."""
        for module, attributes in self._attributes:
            vars(module).clear()
            vars(module).update(attributes)
        for space, names in self._names:  # they are never empty meanwhile, for other threads use them
            for name in [name for name in space if name not in names]:
                del space[name]
            space.update(names)
        for value, content, _ in self._contents.values():
            if _is_changed(value, content):
                _fill(value, content)


_OF_MODULES = ("_parameters", "_buffers", "_modules", *internals.HOOKS)


def _is_changed(value: object, content: object) -> bool:
    return _entries(_content(value)) != _entries(content)


def _is_own(value: object) -> bool:
    """Say whether the class of a value belongs to a file of the script."""
    module = sys.modules.get(type(value).__module__)
    path = getattr(module, "__file__", None)
    return path is not None and lines.is_file_of_script(path)


def _base(value: object) -> type | None:
    return next((kind for kind in _CONTAINERS if isinstance(value, kind)), None)


def _content(value: object) -> object:
    """Return a copy of a container, by the methods of Python's own class."""
    kind: Any = _base(value)
    return kind.copy(value)


def _entries(content: Any) -> list[int]:
    """Return the identities of the entries, in their order."""
    flat = itertools.chain.from_iterable(content.items()) if isinstance(content, dict) else content
    return [id(entry) for entry in flat]


def _fill(value: object, content: object) -> None:
    kind: Any = _base(value)
    kind.clear(value)
    (kind.extend if kind in (list, deque) else kind.update)(value, content)
