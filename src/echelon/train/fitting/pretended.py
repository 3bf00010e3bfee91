"""The module of PyTorch for devices, as a script sees it on a machine with one device."""

from types import SimpleNamespace
from typing import Any, Callable, Dict, Tuple

import torch
from torch.optim import optimizer as optimizers

from ...pytorch import internals
from .. import patches
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

    def elapsed_time(self, _: Any) -> float:
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
    accelerator = getattr(torch, "accelerator", None)
    for name, value in of_any.items():
        if hasattr(accelerator, name):
            patches.replace(accelerator, name, _answering(value), why=_WHY)
    _make_types()
    _choose_as_on_devices()


def _make_types() -> None:
    """Let the FloatTensor of devices and its kin make tensors on the device, and .type() move tensors there."""
    moved, convert = {}, torch.Tensor.type
    for name in ("Float", "Double", "Half", "BFloat16", "Long", "Int", "Short", "Char", "Byte", "Bool"):
        maker = getattr(torch, "%sTensor" % name)

        def make(*args: Any, _maker: Any = maker) -> Any:
            return _maker(*args).to(KIND)

        make.__name__ = "%sTensor" % name
        moved[make] = maker.dtype
        patches.replace(torch.get_device_module(KIND), "%sTensor" % name, make, why=_WHY)

    def as_type(tensor: Any, kind: Any = None, *args: Any, **kwargs: Any) -> Any:
        if callable(kind) and kind in moved:
            return tensor.to(KIND, moved[kind])
        return convert(tensor, kind, *args, **kwargs) if kind is not None else convert(tensor)

    patches.replace(torch.Tensor, "type", as_type, why=_WHY)
    _set_types(torch.set_default_tensor_type, {"torch.%s.%s" % (KIND, make.__name__): make for make in moved}, moved)
    _make_generators(torch.Generator)


def _set_types(original: Callable[[Any], None], names: Dict[str, Any], moved: Dict[Any, Any]) -> None:
    """Let a type of the device, or its name, be the default one."""

    def set_type(kind: Any) -> None:
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


def _answering(value: Any) -> Any:
    return lambda *_, **__: value


def _choose_as_on_devices() -> None:
    """Let optimizers take the lists of tensors that they take on a device (foreach), and no kernel of the CPU."""
    kinds = getattr(optimizers, internals.FOREACH_TYPES)
    patches.replace(optimizers, internals.FOREACH_TYPES, [*kinds, FakeTensor], why=_WHY)
    original = getattr(optimizers, internals.FOREACH_CHOICE)

    def choose(params: Any, differentiable: bool, use_fused: bool = False) -> Tuple[bool, bool]:
        is_there = all(weight is None or is_device(weight.device) for weight in params)
        return (False, not differentiable) if is_there else original(params, differentiable, use_fused)

    patches.replace(optimizers, internals.FOREACH_CHOICE, choose, why=_WHY)
