"""A stand-in for a GPU: put beside a script as sitecustomize.py, it lets each rank believe that it has one.

Tensors stay on the CPU. What is real is PyTorch's own way to a device: torch.cuda._lazy_init() and all that comes to
it, over functions of torch._C that are made here. The driver is strict, as a real one is: a process that has begun it
cannot be forked, and two processes that use one device at the same time are noted. STAND_IN_LOG is a file that gets a
line for each thing that the driver is asked: "count PID", "begin PID RANK", or "both PID RANK" where another still
uses it.

Other variables: STAND_IN_FIRST=1 uses the device where a script first asks for its weights, as one that moves its
model there does; STAND_IN_ROWS=N is a device that holds tensors of N rows at most; STAND_IN_PATIENCE=S is how long
rank 0 waits; STAND_IN_SAME=NAME is the name of the device of all ranks.
"""

import functools
import importlib.abc
import importlib.machinery
import os
import sys
from typing import Any

DOOR, ORACLE = "_echelon.train.wire.device", "_echelon.train.wire.oracle"
FACTORIES = ("tensor", "as_tensor", "zeros", "ones", "full", "empty", "rand", "randn", "randint", "arange", "eye")


class Driver:
    """The calls of a process to the driver."""

    def __init__(self) -> None:
        self.began_in = 0

    def write(self, *words: object) -> None:
        descriptor = os.open(os.environ["STAND_IN_LOG"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        os.write(descriptor, (" ".join(map(str, words)) + "\n").encode())
        os.close(descriptor)

    def count(self) -> int:
        """Begin the driver for a look, as cudaGetDeviceCount() does."""
        self.write("count", os.getpid())
        self.began_in = os.getpid()
        return int(os.environ.get("LOCAL_WORLD_SIZE", "1"))

    def begin(self) -> None:
        """Use the device of this rank."""
        if self.began_in not in (0, os.getpid()):
            raise RuntimeError("CUDA error: initialization error")
        rank = os.environ.get("LOCAL_RANK", "0")
        others = [line.split()[1] for line in self.lines() if line.startswith("begin ") and line.split()[2] == rank]
        is_alone = not any(is_alive(int(pid)) for pid in others)
        self.write("begin" if is_alone else "both", os.getpid(), rank)
        self.began_in = os.getpid()

    def lines(self) -> list[str]:
        descriptor = os.open(os.environ["STAND_IN_LOG"], os.O_RDONLY | os.O_CREAT)
        content = os.read(descriptor, 1 << 20).decode()
        os.close(descriptor)
        return content.splitlines()


def is_alive(pid: int) -> bool:
    """Say whether a process is there, and has not ended: a zombie has given everything back."""
    try:
        descriptor = os.open(f"/proc/{pid}/stat", os.O_RDONLY)
    except OSError:
        return False
    state = os.read(descriptor, 4096).decode().rpartition(")")[2].split()[0]
    os.close(descriptor)
    return state not in "ZX"


def install(door: Any) -> None:
    """Let PyTorch have the functions of a build for CUDA, and the door see devices where tensors are on the CPU."""
    import torch

    driver = Driver()
    torch.backends.cuda.is_built = lambda: True
    torch._C._cuda_getDeviceCount = driver.count
    torch._C._cuda_init = driver.begin
    torch._C._cuda_isInBadFork = lambda: driver.began_in not in (0, os.getpid())
    torch._C._cuda_setDevice = lambda _device: torch.cuda._lazy_init()
    torch._C._cuda_getCurrentRawStream = None  # torch._dynamo takes it
    torch._C._cuda_getDevice = lambda: 0  # so does it take this
    torch.cuda._device_count_nvml = lambda: -1  # a machine on which nothing else can count
    torch.cuda._cudart = torch
    torch.cuda.FloatTensor, torch.cuda.LongTensor = torch.FloatTensor, torch.LongTensor
    torch.cuda.default_generators = (torch.Generator(),)
    torch.cuda.random.device_count = lambda: 0  # seeds of devices that are none
    _move_nothing(torch)
    door.of_rank = lambda _local_rank: torch.device({"cuda": "cpu"}[door.kind()])
    door.is_accelerator = lambda _device: True
    door.set_current = lambda _device: torch.cuda.set_device(0)
    door.synchronize = lambda _device: torch.cuda._lazy_init()
    door.synchronize_used = lambda: None
    door.event = door.current_queue = door.peak_memory = lambda: None
    door.is_capturing = lambda: False
    door.backends = lambda _device, is_shared=False: "gloo"
    door.identity = lambda _device: os.environ.get("STAND_IN_SAME") or os.environ.get("RANK", "0")
    door.name = lambda _device: "a stand-in"
    door.lacks_bf16 = lambda _device: False
    door.seed = door.set_random_state = lambda _value: None
    door.random_state = lambda: None


def _move_nothing(torch: Any) -> None:
    """Let what is moved to the device stay where it is, once the driver has begun."""
    use, rows = torch.cuda._lazy_init, int(os.environ.get("STAND_IN_ROWS", "0"))

    def place(value: Any) -> Any:
        if not isinstance(value, (str, torch.device)) or not str(value).startswith("cuda"):
            return value
        torch.cuda._lazy_init()
        return "cpu"

    def moving(original: Any) -> Any:
        @functools.wraps(original)  # views know functions by their names
        def move(*args: Any, **kwargs: Any) -> Any:
            before = torch.cuda._initialized
            args, kwargs = tuple(map(place, args)), {key: place(value) for key, value in kwargs.items()}
            kwargs.pop("pin_memory", None)  # only a driver pins memory
            if rows and before and type(args[0]) is torch.Tensor and args[0].dim() > 1 and len(args[0]) > rows:
                raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate a batch")
            return original(*args, **kwargs)

        return move

    @functools.wraps(torch.Tensor.cuda)
    def cuda(self: Any, *_args: Any, **_kwargs: Any) -> Any:
        use()
        return self.to("cpu")

    for owner in (torch.Tensor, torch.nn.Module):
        owner.to = moving(owner.to)
        owner.cuda = cuda
    for name in FACTORIES:
        setattr(torch, name, moving(getattr(torch, name)))
    if os.environ.get("STAND_IN_FIRST"):
        parameters = torch.nn.Module.parameters

        def first(self: Any, recurse: bool = True) -> Any:
            torch.cuda._lazy_init()
            return parameters(self, recurse)

        torch.nn.Module.parameters = first


class Finder(importlib.abc.MetaPathFinder):
    """Takes the place of the door when it is imported."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if name not in (DOOR, ORACLE):
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path)
        assert spec is not None
        spec.loader = Loader(spec.loader)
        return spec


class Loader(importlib.abc.Loader):
    """Loads as another does, and changes what it has loaded."""

    def __init__(self, loader: Any) -> None:
        self.loader = loader

    def create_module(self, spec: Any) -> Any:
        return self.loader.create_module(spec)

    def exec_module(self, module: Any) -> None:
        self.loader.exec_module(module)
        if module.__name__ == DOOR:
            install(module)
        elif "STAND_IN_PATIENCE" in os.environ:
            module.LEAST_PATIENCE_SECONDS = float(os.environ["STAND_IN_PATIENCE"])


if "ECHELON_SCALE" in os.environ and "STAND_IN_LOG" in os.environ:
    sys.meta_path.insert(0, Finder())
