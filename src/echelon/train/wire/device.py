"""All access of `train` to GPUs and other accelerators.

It works with every backend of PyTorch (CUDA, ROCm under CUDA's name, XPU, a plug-in). Tests replace these functions
with a stand-in, and so run every branch on a machine without a device.

A process cannot be forked any more after it has started the driver. A count of devices starts it, unless NVML or AMD
SMI answers. So a process that will be forked lets a child count.
"""

import os
import socket
from collections.abc import Callable
from contextlib import ExitStack
from functools import wraps
from typing import Any

import torch
import torch.distributed as dist

from ...hardware import vendors
from ...node import processes
from ...pytorch import internals
from .. import patches
from ..function_types import Function

CPU = "cpu"
_WHY_COUNTED = "Devices are counted in a child, so that this process can be forked."
_MOST_COUNTED = 255  # an exit code


def kind() -> str:
    """Return the type of the devices: "cuda", "xpu" or another; "cpu" if there are none."""
    built = _built()
    return built if built != CPU and count() > 0 else CPU


def _built() -> str:
    """Return this PyTorch build's device type. Before 2.7, torch.accelerator starts CUDA's driver, so it is last."""
    if torch.backends.cuda.is_built():  # type: ignore[no-untyped-call]
        return "cuda"
    if internals.has_xpu():
        return "xpu"
    accelerator = torch.accelerator.current_accelerator()
    # a Mac has no ranks that share its device
    return CPU if accelerator is None or accelerator.type == "mps" else accelerator.type


def _module() -> Any:
    return torch.get_device_module(_built())


def count() -> int:
    if _built() == CPU:
        return 0
    counts = [] if is_used() else internals.driver_functions(internals.DRIVER_COUNTS)
    with ExitStack() as stack:
        for owner, name in counts:
            counting = _counting(getattr(owner, name))
            stack.enter_context(patches.replaced(owner, name, counting, why=_WHY_COUNTED))
        return int(_module().device_count())


def of_rank(local_rank: int) -> torch.device:
    """Return the device of a rank; ranks in excess of the devices share them."""
    name = kind()
    return torch.device(CPU) if name == CPU else torch.device(name, local_rank % count())


def is_accelerator(device: torch.device) -> bool:
    return device.type != CPU


def is_in_use() -> bool:
    """Say whether this process has started the driver, so that its forks cannot use a device."""
    built = _built()
    if built == CPU:
        return False
    return is_used() or bool(processes.open_files())


def before_first_use(act: Callable[[], None]) -> None:
    """Call `act` once, just before this process first uses a device; a question about devices is no use."""
    built = _built()
    if built == CPU:
        return
    entrances: list[tuple[object, str]] = [(torch.Tensor, "pin_memory")]  # it starts the driver by itself
    entrances += internals.driver_functions(internals.DRIVER_STARTS)
    if built not in ("cuda", "xpu") and hasattr(_module(), internals.LAZY_INIT):
        entrances.append((_module(), internals.LAZY_INIT))
    counts = internals.driver_functions(internals.DRIVER_COUNTS)
    installed: list[patches.Patch] = []

    def leave() -> None:
        while installed:
            installed.pop().undo()

    for owner, name in entrances:
        use = _first(getattr(owner, name), leave, act)
        installed.append(patches.replace(owner, name, use, why="The first step is compared before a device is used."))
    for owner, name in counts:
        installed.append(patches.replace(owner, name, _counting(getattr(owner, name)), why=_WHY_COUNTED))


def _first(original: Callable[..., object], leave: Callable[[], None], act: Callable[[], None]) -> Function:
    @wraps(original)
    def use(*args: object, **kwargs: object) -> Any:
        leave()
        act()
        return original(*args, **kwargs)

    return use


def _counting(original: Callable[[], int]) -> Callable[[], int]:
    """Return a function that counts in a child, which starts the driver in the child alone."""
    known: dict[tuple[str | None, ...], int] = {}

    @wraps(original)
    def count_in_child() -> int:
        visible = tuple(os.environ.get(name) for name in vendors.VARIABLES)
        if visible not in known:
            pid = os.fork()
            if not pid:
                number = 0
                try:
                    number = min(_MOST_COUNTED, original())
                finally:
                    os._exit(number)
            known[visible] = os.WEXITSTATUS(os.waitpid(pid, 0)[1])
        return known[visible]

    return count_in_child


def set_current(device: torch.device) -> None:
    if is_accelerator(device):
        torch.get_device_module(device.type).set_device(device)


def current(kind_of_device: str) -> torch.device:
    if kind_of_device == CPU:
        return torch.device(CPU)
    return torch.device(kind_of_device, torch.get_device_module(kind_of_device).current_device())


def synchronize(device: torch.device) -> None:
    if is_accelerator(device):
        torch.get_device_module(device.type).synchronize(device)


def synchronize_used() -> None:
    if is_used():
        _module().synchronize()


def event() -> Any:
    """Return an event in the current device's queue of work, which keeps the time; None if no device is in use."""
    if not is_used():
        return None
    made = _module().Event(enable_timing=True)
    made.record()
    return made


def current_queue() -> Any:
    """Return the queue to which the current device's work goes now (a CUDA stream); None if no device is in use."""
    current_stream = getattr(_module(), "current_stream", None) if is_used() else None
    return None if current_stream is None else current_stream()


def is_capturing() -> bool:
    """Say whether the device's work is captured in a graph: a question about its progress would end the capture."""
    return is_used() and bool(getattr(_module(), "is_current_stream_capturing", lambda: False)())


def peak_memory() -> tuple[int, int] | None:
    """Return the most bytes that tensors have used and that PyTorch has reserved; None if no device is in use."""
    if not is_used() or not hasattr(_module(), "max_memory_allocated"):
        return None
    return int(_module().max_memory_allocated()), int(_module().max_memory_reserved())


def is_used() -> bool:
    """Say whether PyTorch uses a device in this process."""
    return _built() != CPU and bool(getattr(_module(), "is_initialized", lambda: False)())


def name(device: torch.device) -> str:
    return str(torch.get_device_module(device.type).get_device_name(device)) if is_accelerator(device) else CPU


def identity(device: torch.device) -> str:
    """Return a name that is unique to a device on all nodes."""
    properties = torch.get_device_module(device.type).get_device_properties(device)
    visible = " ".join(filter(None, map(os.environ.get, vendors.VARIABLES)))
    return "{} {}".format(socket.gethostname(), getattr(properties, "uuid", None) or f"{device} of {visible}")


def lacks_bf16(device: torch.device) -> bool:
    return device.type == "cuda" and not torch.cuda.is_bf16_supported(False)


def backends(device: torch.device, *, is_shared: bool = False) -> str:
    """Return the backends of the process group, for init_process_group(); NCCL refuses two ranks of one device."""
    if not is_accelerator(device):
        return "gloo"
    own = "gloo" if is_shared else dist.get_default_backend_for_device(device)
    return f"{CPU}:gloo,{device.type}:{own}"


def is_autocast_enabled() -> bool:
    """Say whether autocast is enabled here, on the CPU or on the device in use."""
    return torch.is_autocast_enabled(CPU) or (is_used() and torch.is_autocast_enabled(_built()))


def may_use_tf32() -> bool:
    """Say whether the device in use may multiply 32-bit numbers in TF32, with 10 bits of their fractions."""
    allows = torch.backends.cuda.matmul.allow_tf32 or torch.backends.cudnn.allow_tf32
    return bool(allows) and is_used()


def seed(number: int) -> None:
    if is_used():
        _module().manual_seed_all(number)


def random_state() -> torch.Tensor | None:
    """Return the state of the current device's generator; None if no device is in use."""
    state: torch.Tensor | None = _module().get_rng_state() if is_used() else None
    return state


def set_random_state(state: torch.Tensor | None) -> None:
    if state is not None:
        _module().set_rng_state(state)


def is_out_of_memory(error: BaseException) -> bool:
    return isinstance(error, torch.OutOfMemoryError)
