"""The module of PyTorch for devices, as a script sees it on a machine with one device.

A script that is traced has one device and no other ranks: what would start a group of ranks says so.

A group of one rank exchanges nothing, so none is formed; of DistributedDataParallel the memory is left.
"""

import sys
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import optimizer as optimizers

from ..pytorch import internals
from ..train import patches
from .places import KIND, is_device

FakeTensor: Any = internals.fake_tensors().FakeTensor

_WHY = "The device is not here: what a script asks of it has an answer."


class _Nothing:
    """A stream or an event of the device: all work is done at once."""

    def __init__(self, *_: Any, **__: Any) -> None:
        self.cuda_stream = 0

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return lambda *_, **__: None

    def query(self) -> bool:
        """Say that the work is done."""
        return True

    def elapsed_time(self, _: object) -> float:
        """Return how many milliseconds passed: one."""
        return 1.0

    def __enter__(self) -> Any:
        return self

    def __exit__(self, *_: object) -> None:
        return None


def install(memory_bytes: int) -> None:
    """Let PyTorch answer for one device with this memory."""
    cuda = torch.get_device_module(KIND)
    about = SimpleNamespace(
        name="a device", total_memory=memory_bytes, major=8, minor=0, multi_processor_count=108, gcnArchName="",
        warp_size=32, uuid="", L2_cache_size=1 << 25, shared_memory_per_block_optin=1 << 17,
    )  # fmt: skip
    answers = {
        "is_available": True, "is_initialized": True, "device_count": 1, "current_device": 0, "synchronize": None,
        "get_device_name": about.name, "get_device_properties": about, "get_device_capability": (8, 0),
        "is_bf16_supported": True, "empty_cache": None, "memory_allocated": 0, "max_memory_allocated": 0,
        "memory_reserved": 0, "max_memory_reserved": 0, "reset_peak_memory_stats": None, "memory_stats": {},
        "mem_get_info": (memory_bytes, memory_bytes), "set_device": None, "manual_seed": None, "manual_seed_all": None,
        "seed": None, "seed_all": None, "init": None, internals.LAZY_INIT: None, "ipc_collect": None,
        "memory_summary": "",
        "set_per_process_memory_fraction": None, "is_current_stream_capturing": False, "utilization": 0,
        "get_rng_state": torch.ByteTensor(16), "set_rng_state": None, "current_stream": _Nothing(),
        "get_rng_state_all": [torch.ByteTensor(16)], "set_rng_state_all": None, "initial_seed": 0,
        "default_stream": _Nothing(), "set_stream": None, "get_arch_list": [], "reset_max_memory_allocated": None,
    }  # fmt: skip
    for owner in (cuda, cuda.random):
        for name, value in answers.items():
            if hasattr(owner, name):
                patches.replace(owner, name, _answering(value), why=_WHY)
    for name in ("Stream", "Event", "stream", "device", "nvtx"):
        patches.replace(cuda, name, _Nothing if name != "nvtx" else _Nothing(), why=_WHY)
    of_any = {
        "is_available": True, "current_accelerator": torch.device(KIND), "device_count": 1, "current_device_index": 0,
        "current_device_idx": 0, "current_stream": _Nothing(), "set_stream": None, "synchronize": None,
        "set_device_index": None, "set_device_idx": None,
    }  # fmt: skip
    for name, value in of_any.items():
        if hasattr(torch.accelerator, name):
            patches.replace(torch.accelerator, name, _answering(value), why=_WHY)
    _make_types()
    _choose_as_on_devices()


def _make_types() -> None:
    """Let the FloatTensor of devices and its kin make tensors on the device, and .type() move tensors there."""
    moved, convert = {}, torch.Tensor.type
    for name in ("Float", "Double", "Half", "BFloat16", "Long", "Int", "Short", "Char", "Byte", "Bool"):
        maker = getattr(torch, f"{name}Tensor")

        def make(*args: Any, _maker: Any = maker) -> Any:
            return _maker(*args).to(KIND)

        make.__name__ = f"{name}Tensor"
        moved[make] = maker.dtype
        patches.replace(torch.get_device_module(KIND), f"{name}Tensor", make, why=_WHY)

    def as_type(tensor: Any, kind: Any = None, *args: Any, **kwargs: Any) -> Any:
        if callable(kind) and kind in moved:
            return tensor.to(KIND, moved[kind])
        return convert(tensor, kind, *args, **kwargs) if kind is not None else convert(tensor)

    patches.replace(torch.Tensor, "type", as_type, why=_WHY)
    _set_types(torch.set_default_tensor_type, {f"torch.{KIND}.{make.__name__}": make for make in moved}, moved)
    _make_generators(torch.Generator)


def _set_types(original: Callable[[Any], None], names: dict[str, Any], moved: dict[Any, Any]) -> None:
    """Let a type of the device, or its name, be the default one."""

    def set_type(kind: object) -> None:
        kind = names.get(kind, kind) if isinstance(kind, str) else kind
        if callable(kind) and kind in moved:
            torch.set_default_dtype(moved[kind])
            torch.set_default_device(KIND)
        else:
            original(kind)

    patches.replace(torch, "set_default_tensor_type", set_type, why=_WHY)


def _make_generators(original: Any) -> None:
    """Let a generator of the device be one of the CPU: nothing is drawn."""

    class OfAnyDevice(type(original)):  # type: ignore[misc]
        def __instancecheck__(cls, value: Any) -> bool:
            return isinstance(value, original)

    class Generator(original, metaclass=OfAnyDevice):  # type: ignore[misc]
        def __new__(cls, device: Any = "cpu") -> Any:  # noqa: ARG004  (where it was asked for)
            return original.__new__(cls, "cpu")

    patches.replace(torch, "Generator", Generator, why=_WHY)


def _answering(value: object) -> Any:
    return lambda *_, **__: value


def _choose_as_on_devices() -> None:
    """Let optimizers take the lists of tensors that they take on a device (foreach), and no kernel of the CPU."""
    kinds = getattr(optimizers, internals.FOREACH_TYPES)
    patches.replace(optimizers, internals.FOREACH_TYPES, [*kinds, FakeTensor], why=_WHY)
    original = getattr(optimizers, internals.FOREACH_CHOICE)

    def choose(params: Any, differentiable: bool, use_fused: bool = False) -> tuple[bool, bool]:
        is_there = all(weight is None or is_device(weight.device) for weight in params)
        return (False, not differentiable) if is_there else original(params, differentiable, use_fused)

    patches.replace(optimizers, internals.FOREACH_CHOICE, choose, why=_WHY)


_WHY_ONE_DEVICE = "A trace is that of one device."


class Distributes(RuntimeError):
    """The script begins to distribute itself."""


def install_one_device() -> None:
    """Let init_process_group() fail before a library connects to anything, except for a group of one rank."""
    if not dist.is_available():
        return
    groups_of_one: list[int] = []
    original = DistributedDataParallel.__init__

    def init_process_group(*_: object, world_size: int = -1, **__: object) -> None:
        if world_size != 1:
            raise Distributes("init_process_group() is called")
        groups_of_one.append(world_size)

    def wrap(self: Any, module: nn.Module, *args: Any, **kwargs: Any) -> None:
        if not groups_of_one:
            original(self, module, *args, **kwargs)
            return
        nn.Module.__init__(self)
        self.module = module
        self.require_backward_grad_sync, self.static_graph = True, False
        self._get_ddp_logging_data = dict  # Lightning reads it at the end
        weights = [weight for weight in module.parameters() if weight.requires_grad]
        are_gradients = kwargs.get("gradient_as_bucket_view", False)
        self.buckets = [] if are_gradients else [torch.empty_like(one, requires_grad=False) for one in weights]

    def forward(self: Any, *args: object, **kwargs: object) -> Any:
        return self.module(*args, **kwargs)

    for owner in (dist, dist.distributed_c10d):
        patches.replace(owner, "init_process_group", init_process_group, why=_WHY_ONE_DEVICE)
    patches.replace(DistributedDataParallel, "__init__", wrap, why=_WHY_ONE_DEVICE)
    patches.replace(DistributedDataParallel, "forward", forward, why=_WHY_ONE_DEVICE)


def simplify_frameworks() -> None:
    """Replace what frameworks that are imported do with data or in C, and that takes nothing of the device."""
    for module, kind, name, replacement in _REPLACED:
        imported = sys.modules.get(module)
        owner: Any = getattr(imported, kind, None) if kind else imported
        if getattr(owner, name, replacement) is not replacement:
            patches.replace(owner, name, replacement, why=_WHY_ONE_DEVICE)


def _as_it_is(_: object, tensor: object, *__: object, **___: object) -> Any:
    return tensor


def _nothing(*_: object, **__: object) -> None:
    return None


_REPLACED: tuple[tuple[str, str, str, Callable[..., Any]], ...] = (
    ("accelerate.accelerator", "Accelerator", "pad_across_processes", _as_it_is),  # reads the lengths of all ranks
    ("accelerate.accelerator", "Accelerator", "save_model", _nothing),
    ("accelerate.accelerator", "Accelerator", "save_state", _nothing),
    ("transformers.modeling_utils", "PreTrainedModel", "save_pretrained", _nothing),  # safetensors writes in Rust
    ("safetensors.torch", "", "save_file", _nothing),
    ("safetensors.torch", "", "save_model", _nothing),
)
"""A module, a class of it or "", a name, and what takes its place."""
