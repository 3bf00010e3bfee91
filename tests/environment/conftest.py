"""Offer recorded environments and made device trees to the tests of this folder."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

RECORDINGS = Path(__file__).parent / "recordings"


@pytest.fixture
def recorded() -> Callable[[str], dict[str, str]]:
    """Read a recorded environment by its name."""

    def read(name: str) -> dict[str, str]:
        lines = (RECORDINGS / f"{name}.env").read_text().splitlines()
        return dict(line.split("=", 1) for line in lines)

    return read


@pytest.fixture
def nvidia_tree(tmp_path: Path) -> Callable[[int], str]:
    """Make a root with character devices that are named like NVIDIA's."""

    def make(num_devices: int) -> str:
        (tmp_path / "dev").mkdir()
        for name in [*(f"nvidia{index}" for index in range(num_devices)), "nvidiactl", "nvidia-uvm"]:
            (tmp_path / "dev" / name).symlink_to(os.devnull)
        return str(tmp_path)

    return make


@pytest.fixture
def amd_tree(tmp_path: Path) -> Callable[[int], Path]:
    """Make a root with the KFD nodes of a LUMI-G node: four CPU nodes, then the devices."""

    def make(num_devices: int) -> Path:
        nodes = tmp_path / "sys/class/kfd/kfd/topology/nodes"
        for index in range(4 + num_devices):
            node = nodes / str(index)
            node.mkdir(parents=True)
            is_device = index >= 4
            simd_count, cores = (440, 0) if is_device else (0, 32)
            (node / "gpu_id").write_text(f"{50000 + index if is_device else 0}\n")
            (node / "properties").write_text(
                f"cpu_cores_count {cores}\nsimd_count {simd_count}\nmem_banks_count 1\nvendor_id 4098\n"
            )
        return tmp_path

    return make
