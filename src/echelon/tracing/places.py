"""Let a script move tensors without data to a device that is not here: they stay fakes on the CPU, and are noted."""

import warnings
from collections.abc import Callable
from functools import wraps
from typing import Any

import torch
from torch import nn

from ..pytorch import internals
from ..train import patches
from .ledger import Ledger

FakeTensor: Any = internals.fake_tensors().FakeTensor

KIND = "cuda"  # the name of NVIDIA's and AMD's devices
_WHY = "The device is not here: its tensors have shapes and no data."
_NEW = ("new_zeros", "new_ones", "new_empty", "new_full", "new_tensor", "new_empty_strided")
_LIKE = ("empty_like", "zeros_like", "ones_like", "full_like", "rand_like", "randn_like", "randint_like")


def is_device(place: object) -> bool:
    """Say whether a device, a name or a number is that of a GPU."""
    if place is None or isinstance(place, (torch.Tensor, torch.dtype)):
        return False
    return isinstance(place, int) or str(place).startswith((KIND, "hip"))


class TensorDevices:
    """The device of each tensor, as the script sees it."""

    def __init__(self, ledger: Ledger, mode: Any) -> None:
        self._ledger = ledger
        self._mode = mode
        self._makers: dict[Any, Callable[..., Any]] = {}
        """For each of PyTorch's functions that make tensors, the one in its place."""
        self.are_used = False
        """Whether the script has put a tensor on the device."""

    def install(self) -> None:
        """Replace what moves and makes tensors, and what asks where they are."""
        ledger, kept = self._ledger, FakeTensor.device

        def device(tensor: Any) -> torch.device:
            if not ledger.depth and self.are_used and ledger.is_on_device(tensor):
                return torch.device(KIND, 0)
            place: torch.device = kept.fget(tensor)
            return place

        patches.replace(FakeTensor, "device", property(device), why=_WHY)
        patches.replace(FakeTensor, "is_cuda", property(lambda value: is_device(value.device)), why=_WHY)
        patches.replace(FakeTensor, "is_cpu", property(lambda value: not is_device(value.device)), why=_WHY)
        patches.replace(FakeTensor, "get_device", lambda value: 0 if is_device(value.device) else -1, why=_WHY)
        self._replace_moves()
        makers = internals.device_constructors()
        for name in dir(torch):
            original = getattr(torch, name)
            if callable(original) and _is_in(original, makers):
                self._makers[original] = self._making(original)
                patches.replace(torch, name, self._makers[original], why=_WHY)
        for owner, names in ((torch.Tensor, _NEW), (torch, _LIKE)):
            for name in names:
                patches.replace(owner, name, self._making(getattr(owner, name), num_kept=1), why=_WHY)
        self._replace_context()
        self._replace_weights()
        self._replace_data()
        patches.replace(torch.utils, "swap_tensors", _swapping(torch.utils.swap_tensors), why=_WHY)
        patches.replace(FakeTensor, "__deepcopy__", _deep_copy, why=_WHY)

    def _replace_moves(self) -> None:
        to = torch.Tensor.to

        @wraps(to)
        def move(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
            if self._ledger.depth:
                return to(tensor, *args, **kwargs)
            if args and isinstance(args[0], torch.Tensor):
                args = (args[0].device, args[0].dtype, *args[1:])
            copy = bool(kwargs.pop("copy", False))
            place, dtype, _, layout = internals.parsed_move(*_as_cpu(args), **_kwargs_as_cpu(kwargs))
            asked = _asked_place(args, kwargs)
            settings: dict[str, Any] = {
                "dtype": dtype or tensor.dtype,
                "memory_format": layout or torch.preserve_format,
            }
            if asked is None and place is None:
                return to(tensor, copy=copy, **settings)
            return self._put(tensor, on_device=is_device(asked), copy=copy, settings=settings, to=to)

        patches.replace(torch.Tensor, "to", move, why=_WHY)
        patches.replace(torch.Tensor, "cuda", lambda value, *_, **__: value.to(KIND), why=_WHY)
        patches.replace(torch.Tensor, "cpu", lambda value, *_, **__: value.to("cpu"), why=_WHY)
        patches.replace(torch.Tensor, "pin_memory", lambda value, *_, **__: value, why=_WHY)
        patches.replace(nn.Module, "cuda", lambda module, *_: module.to(KIND), why=_WHY)

    def _put(
        self, tensor: Any, *, on_device: bool, copy: bool, settings: dict[str, Any], to: Callable[..., Any]
    ) -> Any:
        is_there = self.are_used and self._ledger.is_on_device(tensor)
        if on_device == is_there:
            return to(tensor, copy=copy, **settings)
        if not on_device:
            copied = self._beside(tensor, settings["dtype"])
            if hasattr(tensor, "echelon_truth"):
                copied.echelon_truth = tensor.echelon_truth
            return copied
        self.are_used = self._ledger.is_moving = True
        try:
            return to(self._without_data(tensor), device="cpu", copy=True, **settings)
        finally:
            self._ledger.is_moving = False

    def _without_data(self, tensor: Any) -> Any:
        if isinstance(tensor, FakeTensor):
            return tensor
        return self._of_meta(tensor) if tensor.is_meta else self._mode.from_tensor(tensor)

    def _of_meta(self, tensor: Any) -> Any:
        """Return a tensor that says it is on meta, and that may get data later: PyTorch's own could not."""
        made = self._beside(tensor, tensor.dtype).requires_grad_(tensor.requires_grad)
        if isinstance(tensor, nn.Parameter):
            internals.mark_as_parameter(made)
        made.fake_device = tensor.device
        return made

    def _beside(self, tensor: Any, dtype: torch.dtype) -> Any:
        """Return a tensor of this shape that is not in the ledger."""
        with internals.without_modes(), self._mode:
            return torch.empty_strided(tuple(tensor.shape), tensor.stride(), dtype=dtype, device="cpu")

    def _replace_weights(self) -> None:
        """Let the weights of modules have no data, from the moment in which a module has them."""
        register = nn.Module.register_parameter

        def registered(module: nn.Module, name: str, weight: object) -> None:
            register(module, name, None if weight is None else self._without_data(weight))

        patches.replace(nn.Module, "register_parameter", registered, why=_WHY)

    def _replace_data(self) -> None:
        """Let `tensor.data = value` keep whether the tensor has data."""
        data: Any = torch.Tensor.data

        def assign(tensor: torch.Tensor, value: torch.Tensor) -> None:
            if isinstance(tensor, FakeTensor):
                value = self._without_data(value)
            elif isinstance(value, FakeTensor):
                with internals.without_modes(), self._ledger:
                    value = torch.zeros(tuple(value.shape), dtype=value.dtype)
            data.__set__(tensor, value)
            if isinstance(tensor, FakeTensor):
                tensor.fake_device = value.fake_device  # type: ignore[attr-defined]

        patches.replace(torch.Tensor, "data", property(data.__get__, assign), why=_WHY)

    def _replace_context(self) -> None:
        """Let what is made under `with torch.device("cuda"):`, or by default, be made on the device."""

        def make(context: Any, func: Any, _: Any, args: Any = (), kwargs: Any = None) -> Any:
            kwargs = kwargs or {}
            maker = self._makers.get(func)
            if maker is None or self._ledger.depth or kwargs.get("device") is not None:
                return func(*args, **kwargs)
            return maker(*args, **{**kwargs, "device": context.device})

        patches.replace(internals.device_context(), "__torch_function__", make, why=_WHY)

    def _making(self, original: Callable[..., Any], *, num_kept: int = 0) -> Callable[..., Any]:
        """Return a function that makes tensors; its first `num_kept` arguments are tensors, the others are sizes."""

        @wraps(original)
        def make(*args: object, **kwargs: object) -> Any:
            place = kwargs.get("device")
            if self._ledger.depth or str(place) == "meta":
                return original(*args, **kwargs)
            on_device = is_device(place)
            if place is not None:
                kwargs["device"] = "cpu"
            if not on_device:
                return self._elsewhere(original, place, args, kwargs)
            args = (*args[:num_kept], *internals.tree_map_only(torch.Tensor, _as_number, args[num_kept:]))
            self.are_used = self._ledger.is_moving = True
            try:
                with self._mode, self._ledger:  # the ledger is asked first
                    return original(*args, **kwargs)
            finally:
                self._ledger.is_moving = False

        return make

    def _elsewhere(self, original: Callable[..., Any], place: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        """Make a tensor; what is like one of the device, but shall be in the host's memory, is not in the ledger."""
        is_like = bool(args) and isinstance(args[0], FakeTensor) and self._ledger.is_on_device(args[0])
        if place is None or not is_like:
            return original(*args, **kwargs)
        with internals.without_modes(), self._mode:
            return original(*args, **kwargs)


def _as_number(tensor: torch.Tensor) -> Any:
    is_size = tensor.dim() == 0 and not (tensor.dtype.is_floating_point or tensor.dtype.is_complex)
    return int(tensor) if is_size and tensor.dtype != torch.bool else tensor


def _asked_place(args: Any, kwargs: dict[str, Any]) -> Any:
    """Return the device that .to() was called with, if any."""
    if "device" in kwargs:
        return kwargs["device"]
    return args[0] if args and isinstance(args[0], (str, int, torch.device)) else None


def _as_cpu(args: Any) -> Any:
    return ("cpu", *args[1:]) if args and is_device(args[0]) else args


def _kwargs_as_cpu(kwargs: dict[str, Any]) -> dict[str, Any]:
    return {**kwargs, "device": "cpu"} if is_device(kwargs.get("device")) else kwargs


def _is_in(function: Any, functions: Any) -> bool:
    try:
        return function in functions
    except TypeError:
        return False


def _deep_copy(tensor: Any, memo: dict[int, Any]) -> Any:
    """Return a copy that belongs to the same trace."""
    if id(tensor) not in memo:
        copied = tensor.detach().clone().requires_grad_(tensor.requires_grad)
        if internals.is_marked_as_parameter(tensor):
            internals.mark_as_parameter(copied)
        copied.grad = None if tensor.grad is None else _deep_copy(tensor.grad, memo)
        memo[id(tensor)] = copied
    return memo[id(tensor)]


def _swapping(original: Callable[..., Any]) -> Callable[..., Any]:
    """Return a swap of two tensors that keeps the first object: weak references to it stay valid."""

    def swap(first: Any, second: Any) -> None:
        if not isinstance(first, FakeTensor):
            original(first, second)
            return
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            first.data = second.data

    return swap
