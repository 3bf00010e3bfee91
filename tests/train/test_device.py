"""The one door to devices, with functions of a build for CUDA or XPU in place of PyTorch's own."""

import ctypes
import os
import threading
import time
from glob import glob
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from echelon.node import preload, processes
from echelon.train.wire import device as devices
from echelon.train.wire import groups, messages

CPU = torch.device("cpu")


class Driver:
    """A driver that records the calls of PyTorch's own functions."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    def count(self) -> int:
        self.asked.append("count")
        return 3

    def begin(self) -> None:
        self.asked.append("begin")


@pytest.fixture(params=["cuda", "xpu"])
def driver(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Driver:
    """Give PyTorch the functions that a build has."""
    made, name = Driver(), request.param
    monkeypatch.setattr(torch._C, f"_{name}_getDeviceCount", made.count, raising=False)
    monkeypatch.setattr(torch._C, f"_{name}_init", made.begin, raising=False)
    monkeypatch.setattr(torch.backends.cuda, "is_built", lambda: name == "cuda")
    monkeypatch.setattr(torch.xpu, "_is_compiled", lambda: name == "xpu")
    monkeypatch.setattr(torch.cuda, "_cudart", torch)
    monkeypatch.setattr(torch.cuda, "_device_count_nvml", lambda: -1)
    for module in (torch.cuda, torch.xpu):
        monkeypatch.setattr(module, "_initialized", False)
        monkeypatch.setattr(module, "_queued_calls", [])
        tracker = module._lazy_seed_tracker  # an earlier torch.manual_seed() waits in it
        monkeypatch.setattr(module, "_lazy_seed_tracker", type(tracker)())
    monkeypatch.setattr(torch.xpu, "_device_count_zes", lambda: -1, raising=False)
    monkeypatch.setattr(torch.Tensor, "pin_memory", torch.Tensor.pin_memory)
    return made


def test_without_a_device() -> None:
    """Without a device all is the CPU's, and nothing is waited for."""
    assert (devices.kind(), devices.count(), devices.of_rank(3)) == ("cpu", 0, CPU)
    assert not devices.is_accelerator(CPU)
    assert not devices.is_in_use()
    assert (devices.name(CPU), devices.backends(CPU), devices.random_state()) == ("cpu", "gloo", None)
    devices.set_current(CPU)
    devices.synchronize(CPU)
    devices.synchronize_used()
    devices.seed(1)
    devices.set_random_state(None)
    assert not devices.lacks_bf16(CPU)


def test_counting_leaves_the_driver_alone(driver: Driver) -> None:
    """A child counts: a driver that has begun to work here would forbid a fork."""
    name = "cuda" if torch.backends.cuda.is_built() else "xpu"
    assert (devices.kind(), devices.count()) == (name, 3)
    assert [devices.of_rank(rank).index for rank in range(4)] == [0, 1, 2, 0]
    assert driver.asked == []


def test_something_comes_before_the_first_use(driver: Driver) -> None:
    """The act runs once, before the driver begins; asking for devices does not run it."""
    module: Any = torch.get_device_module(devices.kind())
    devices.before_first_use(lambda: driver.asked.append("before"))
    assert module.device_count() == 3
    assert module.is_available()
    assert driver.asked == []
    module.init()
    assert driver.asked == ["before", "begin"]
    assert devices.is_in_use()
    module.init()
    assert driver.asked == ["before", "begin"]


def test_pinned_memory_is_a_first_use(driver: Driver) -> None:
    """Page-locked memory comes from the driver, whoever asks for it."""
    devices.before_first_use(lambda: driver.asked.append("before"))
    try:
        torch.zeros(2).pin_memory()
    except (RuntimeError, AssertionError):
        pass  # there is no device
    assert driver.asked[:1] == ["before"]


def test_driver_that_a_library_began(driver: Driver, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A library may use a device without PyTorch: the file that the driver has open shows it."""
    assert not devices.is_in_use()
    monkeypatch.setattr(processes, "DEVICE_FILES", (str(tmp_path / "uvm"),))
    with (tmp_path / "uvm").open("w"):
        assert devices.is_in_use()
    assert not devices.is_in_use()


@pytest.mark.parametrize(
    ("name", "is_shared", "expected"),
    [("cuda", False, "cpu:gloo,cuda:nccl"), ("xpu", False, "cpu:gloo,xpu:xccl"), ("cuda", True, "cpu:gloo,cuda:gloo")],
)
def test_backends(name: str, is_shared: bool, expected: str) -> None:
    """Each device has its own way to exchange tensors, and ranks that share one go over the CPU."""
    assert devices.backends(torch.device(name, 0), is_shared=is_shared) == expected


@pytest.mark.parametrize(("names", "is_shared"), [("abc", False), ("aba", True)])
def test_ranks_see_that_they_share_a_device(names: str, is_shared: bool) -> None:
    """All ranks come to the same, whoever comes last."""
    store = torch.distributed.HashStore()  # type: ignore[attr-defined]
    children = []
    import threading

    answers: list[bool] = []
    for name in names:
        thread = threading.Thread(
            target=lambda name=name: answers.append(groups._share_devices(store, name, len(names)))
        )
        thread.start()
        children.append(thread)
    for thread in children:
        thread.join()
    assert answers == [is_shared] * len(names)


def test_out_of_memory() -> None:
    """PyTorch's own error of a full device is known as such."""
    assert devices.is_out_of_memory(torch.OutOfMemoryError("CUDA out of memory"))
    assert not devices.is_out_of_memory(RuntimeError(os.strerror(12)))


class Library:
    """libcuda.so.1, as far as it says whether cuInit() has run."""

    def __init__(self, code: int) -> None:
        self.code = code

    def cuDeviceGetCount(self, _count: Any) -> int:
        return self.code


@pytest.mark.parametrize(
    ("code", "opened", "found"),
    [
        (3, ["/dev/nvidia-uvm", "/dev/nvidiactl"], []),  # NVML since driver 580
        (0, ["/dev/nvidia-uvm", "/dev/nvidiactl"], ["/dev/nvidia-uvm"]),
        (None, ["/dev/nvidia-uvm"], []),  # NVML, without CUDA
        (3, ["/dev/nvidia-uvm", "/dev/kfd"], ["/dev/kfd"]),
    ],
)
def test_nvml_is_no_use_of_a_device(
    code: Any, opened: list[str], found: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """NVML opens a file of the driver and starts a thread, as CUDA does; the answer of CUDA's library decides."""

    def load(_name: str, **_options: Any) -> Library:
        if code is None:
            raise OSError
        return Library(code)

    monkeypatch.setattr(ctypes, "CDLL", load)
    monkeypatch.setattr(processes.os, "listdir", lambda _path: [str(number) for number in range(len(opened))])
    monkeypatch.setattr(processes.os, "readlink", lambda path: opened[int(path.rpartition("/")[2])])
    assert processes.open_files() == found


def test_thread_of_nvml_allows_a_fork(monkeypatch: pytest.MonkeyPatch) -> None:
    """A thread by NVML's name is no reason against a fork until CUDA has begun."""
    end = threading.Event()

    def wait() -> None:
        Path(f"/proc/self/task/{threading.get_native_id()}/comm").write_text("cuda00001800007")
        end.wait()

    thread = threading.Thread(target=wait)
    thread.start()
    try:
        while "cuda00001800007" not in [Path(path).read_text().strip() for path in glob("/proc/self/task/*/comm")]:
            time.sleep(0.01)
        monkeypatch.setattr(processes, "has_cuda_begun", lambda: False)
        assert "cuda00001800007" not in preload._threads()
        monkeypatch.setattr(processes, "has_cuda_begun", lambda: True)
        assert "cuda00001800007" in preload._threads()
    finally:
        end.set()
        thread.join()


def test_tensors_of_a_device_travel_over_the_cpu_by_gloo(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where gloo carries a device's tensors, a copy on the CPU is sent, and what is received is copied back."""
    monkeypatch.setattr(messages, "_is_by_gloo", lambda _tensor, _group: True)
    monkeypatch.setattr(dist, "recv", lambda tensor, *_: tensor.fill_(7.0))
    into = torch.zeros(3)
    assert messages._carrier(into, None) is not into
    messages.receive_tensors(into, 1)
    assert into.tolist() == [7.0] * 3
