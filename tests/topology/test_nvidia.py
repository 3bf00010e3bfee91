"""What NVML adds to the driver's files, and what becomes of it without NVML."""

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.topology import trees

from echelon.hardware.nvidia import cards
from echelon.topology import pci

BUSES = ("07", "0f", "47", "4e", "87", "90", "b7", "bd")


class NVMLError(Exception):
    """As the package has it."""


class Library:
    """A stand-in for the package nvidia-ml-py on a DGX A100 with NVSwitch."""

    NVMLError = NVMLError
    NVML_NVLINK_DEVICE_TYPE_SWITCH = 2

    def __init__(self, *, num_links: int = 12, mig_on: int = -1, direct: bool = False, fails: bool = False) -> None:
        self.num_links, self.mig_on, self.direct, self.fails = num_links, mig_on, direct, fails
        self.is_open = False

    def nvmlInit(self) -> None:
        if self.fails:
            raise NVMLError("Driver Not Loaded")
        self.is_open = True

    def nvmlShutdown(self) -> None:
        self.is_open = False

    def nvmlDeviceGetCount(self) -> int:
        return len(BUSES)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:
        return index

    def nvmlDeviceGetPciInfo(self, handle: int) -> SimpleNamespace:
        return SimpleNamespace(busId=f"00000000:{BUSES[handle].upper()}:00.0".encode())

    def nvmlDeviceGetName(self, handle: Any) -> bytes:
        return b"NVIDIA A100-SXM4-40GB" + (b" MIG 1g.5gb" if isinstance(handle, tuple) else b"")

    def nvmlDeviceGetUUID(self, handle: Any) -> str:
        return f"MIG-{handle[1]}" if isinstance(handle, tuple) else trees.uuid(handle)

    def nvmlDeviceGetMemoryInfo(self, handle: Any) -> SimpleNamespace:
        return SimpleNamespace(total=(5 if isinstance(handle, tuple) else 40) * trees.GIB)

    def nvmlDeviceGetMigMode(self, handle: int) -> list[int]:
        return [int(handle == self.mig_on)] * 2

    def nvmlDeviceGetMaxMigDeviceCount(self, handle: int) -> int:
        return 7

    def nvmlDeviceGetMigDeviceHandleByIndex(self, handle: int, index: int) -> tuple[str, int]:
        if index > 1:
            raise NVMLError("Not Found")
        return ("mig", index)

    def nvmlDeviceGetGpuInstanceId(self, handle: tuple[str, int]) -> int:
        return 7 + handle[1]

    def nvmlDeviceGetComputeInstanceId(self, handle: tuple[str, int]) -> int:
        return 0

    def nvmlDeviceGetNvLinkState(self, handle: int, link: int) -> int:
        if link >= self.num_links:
            raise NVMLError("Invalid Argument")
        return 1

    def nvmlDeviceGetNvLinkRemotePciInfo(self, handle: int, link: int) -> SimpleNamespace:
        other = BUSES[handle ^ 1] if self.direct else "c4"
        return SimpleNamespace(busId=f"00000000:{other}:00.0")

    def nvmlDeviceGetNvLinkRemoteDeviceType(self, handle: int, link: int) -> int:
        return 0 if self.direct else 2


@pytest.fixture
def dgx(tmp_path: Path) -> str:
    return str(trees.dgx_a100(tmp_path))


def test_memory_and_switch_links_come_from_nvml(dgx: str) -> None:
    """Behind NVSwitch each card reaches each other with all of its links, and NVML is closed again."""
    library = Library()
    devices, links = cards.read(dgx, library)
    assert {device.memory_bytes for device in devices} == {40 * trees.GIB}
    assert links == tuple((one, other, "nvlink", 12) for one in range(8) for other in range(one + 1, 8))
    assert not library.is_open


def test_direct_links_are_between_their_cards(dgx: str) -> None:
    """Without a switch a link joins the two cards at its ends."""
    _, links = cards.read(dgx, Library(num_links=4, direct=True))
    assert links == ((0, 1, "nvlink", 4), (2, 3, "nvlink", 4), (4, 5, "nvlink", 4), (6, 7, "nvlink", 4))


def test_mig_devices_take_their_card_s_place(dgx: str) -> None:
    """A card in slices is as many devices on one chip, at the card's own place."""
    devices, _ = cards.read(dgx, Library(mig_on=1))
    assert [(device.number, device.chip) for device in devices[:4]] == [(0, 0), (1, 1), (2, 1), (3, 3)]
    assert devices[2] == devices[1]._replace(number=2, uuid="MIG-1")
    assert (devices[1].model, devices[1].memory_bytes) == ("NVIDIA A100-SXM4-40GB MIG 1g.5gb", 5 * trees.GIB)
    assert devices[1].pci == "0000:0f:00.0"
    assert [device.numa for device in pci.placed(dgx, devices)[:3]] == [3, 3, 3]


def test_mig_device_whose_capability_is_hidden_is_not_allowed(dgx: str) -> None:
    """A cgroup gives one slice of a card by its capability file."""
    tree = trees.Tree(Path(dgx))
    for instance, minor in ((7, 66), (8, 75)):
        place = f"proc/driver/nvidia/capabilities/gpu1/mig/gi{instance}"
        tree.write(f"{place}/access", f"DeviceFileMinor: {minor}\nDeviceFileMode: 292\nDeviceFileModify: 1")
    tree.write("dev/nvidia-caps/nvidia-cap75", "")
    devices, _ = cards.read(dgx, Library(mig_on=1))
    assert [device.is_allowed for device in devices[:4]] == [True, False, True, True]


def broken() -> Any:
    return SimpleNamespace(NVMLError=NVMLError, nvmlInit=lambda: None, nvmlDeviceGetCount=lambda: 2)


@pytest.mark.parametrize("library", [None, Library(fails=True), broken()], ids=["none", "no driver", "too old"])
def test_without_nvml_the_driver_s_files_are_enough(dgx: str, library: Any) -> None:
    """Model, identifier, place and permission are known without NVML; memory and links stay unknown."""
    devices, links = cards.read(dgx, library)
    assert [device.uuid for device in devices] == [trees.uuid(number) for number in range(8)]
    assert {(device.model, device.memory_bytes) for device in devices} == {("NVIDIA A100-SXM4-40GB", 0)}
    assert links == ()


def test_device_files_alone_are_counted(tmp_path: Path) -> None:
    """In a container that hides the driver's files, the device files are the devices."""
    for name in ("nvidia0", "nvidia3", "nvidiactl", "nvidia-uvm"):
        trees.Tree(tmp_path).write(f"dev/{name}", "")
    devices, _ = cards.read(str(tmp_path))
    assert [(device.number, device.model, device.is_allowed) for device in devices] == [(0, "", True), (1, "", True)]


def test_cards_without_device_files_are_allowed(dgx: str, tmp_path: Path) -> None:
    """Before the first use after boot there are no device files yet, and nothing is forbidden."""
    for path in (tmp_path / "dev").iterdir():
        path.unlink()
    assert all(device.is_allowed for device in cards.read(dgx)[0])


@pytest.mark.parametrize("machine", [trees.dgx_a100, trees.v100], ids=lambda machine: machine.__name__)
def test_order_is_that_of_the_pci_addresses(machine: Callable[..., Path], tmp_path: Path) -> None:
    """Devices are numbered as CUDA_DEVICE_ORDER=PCI_BUS_ID does."""
    addresses = [device.pci for device in cards.read(str(machine(tmp_path)))[0]]
    assert addresses == sorted(addresses)
