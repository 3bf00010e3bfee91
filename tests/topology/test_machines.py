"""Real kinds of nodes, whole and in part, are read as their documentation describes them."""

from pathlib import Path

import pytest
from tests.topology import trees
from tests.topology.conftest import Reader

from echelon.topology import binding, discover
from echelon.topology.node import Node

LUMI_MAP = {
    0: "49-55", 1: "57-63", 2: "17-23", 3: "25-31", 4: "1-7", 5: "9-15", 6: "33-39", 7: "41-47",
}  # fmt: skip


def near(node: Node) -> dict[int, str]:
    return {number: binding.cpu_list(cpus) for number, cpus in discover.near_cores(node).items()}


@pytest.mark.parametrize("local", ["numa", "cache", "unknown"])
def test_lumi_g_whole_has_the_documented_map(read: Reader, local: str) -> None:
    """A full LUMI-G node gives each device the seven cores of the documented map, however precise sysfs is."""
    node = read(trees.lumi_g, local=local)
    assert near(node) == LUMI_MAP
    assert [device.model for device in node.devices] == ["gfx90a"] * 8
    assert {device.memory_bytes for device in node.devices} == {64 * trees.GIB}
    assert node.devices[1].pci == "0000:c6:00.0"
    assert node.devices[1].uuid == "GPU-4a7c19da00000001"
    assert [device.numa for device in node.devices] == [3, 3, 1, 1, 0, 0, 2, 2]


def test_lumi_g_masks_are_the_documented_ones(read: Reader) -> None:
    """The masks are those that LUMI's users are told to write."""
    masks = [binding.mask(cpus) for cpus in discover.near_cores(read(trees.lumi_g)).values()]
    assert masks == [
        "0x00fe000000000000", "0xfe00000000000000", "0x0000000000fe0000", "0x00000000fe000000",
        "0x00000000000000fe", "0x000000000000fe00", "0x000000fe00000000", "0x0000fe0000000000",
    ]  # fmt: skip


def test_lumi_g_with_smt_and_reserved_cores(read: Reader) -> None:
    """With both hardware threads and the reserved cores named, each rank gets its seven cores twice."""
    node = read(trees.lumi_g, cpus="0-127")
    assigned = binding.assign(node, node.devices, reserved=range(0, 64, 8))
    lists = [LUMI_MAP[number].split("-") for number in range(8)]
    assert assigned == [(*range(int(low), int(high) + 1), *range(int(low) + 64, int(high) + 65)) for low, high in lists]


def test_lumi_g_chips_links_and_nics(read: Reader) -> None:
    """Dies with four links between them are one chip, a two-hop path is no link, and a chip's NIC is nearest to it."""
    node = read(trees.lumi_g)
    assert [device.chip for device in node.devices] == [0, 0, 2, 2, 4, 4, 6, 6]
    assert {(one, other): count for one, other, _, count in node.device_links} == trees.LUMI_LINKS
    assert [(nic.name, nic.kind, nic.numa, nic.bits_per_second) for nic in node.nics] == [
        ("hsn0", "slingshot", 3, 200_000_000_000),
        ("hsn1", "slingshot", 1, 200_000_000_000),
        ("hsn2", "slingshot", 0, 200_000_000_000),
        ("hsn3", "slingshot", 2, 200_000_000_000),
        ("nmn0", "ethernet", 2, 1_000_000_000),
    ]
    nearest = [binding.nearest_nic(node, device) for device in node.devices]
    assert [nic.name for nic in nearest if nic] == ["hsn0", "hsn0", "hsn1", "hsn1", "hsn2", "hsn2", "hsn3", "hsn3"]


def test_lumi_g_with_an_old_kernel_has_a_chip_per_device(read: Reader) -> None:
    """Where the kernel does not say how many links there are, no chip is guessed."""
    node = read(trees.lumi_g, bandwidth=False)
    assert [device.chip for device in node.devices] == list(range(8))
    assert {count for *_, count in node.device_links} == {0}


def test_lumi_g_in_part_keeps_to_its_cores_and_devices(read: Reader) -> None:
    """A job with two devices sees the others hidden, their places from the driver's list, and each near core once."""
    node = read(trees.lumi_g, cpus="1-7,17-23", devices=(2, 4))
    assert [device.number for device in node.devices if device.is_allowed] == [2, 4]
    assert [device.numa for device in node.devices] == [3, 3, 1, 1, 0, 0, 2, 2]
    assert node.devices[0].model == ""
    assert near(node) == {2: "17-23", 4: "1-7"}
    assert [link[:2] for link in node.device_links] == [(2, 4)]


def test_lumi_g_in_part_with_cores_elsewhere(read: Reader) -> None:
    """Where Slurm gave cores far from the device, the rank gets them all the same, and the distance says so."""
    node = read(trees.lumi_g, cpus="1-7", devices=(0,))
    assert near(node) == {0: "1-7"}
    assert binding.distance(node, range(1, 8), node.devices[0]) == 12


def test_dgx_a100_whole(read: Reader) -> None:
    """Sixteen cores each: the two of a pair share the domain at the pair, and take as much of a neighbour each."""
    node = read(trees.dgx_a100)
    assert near(node) == {
        0: "0-7,48-55,128-135,176-183", 1: "8-15,56-63,136-143,184-191",
        2: "16-23,32-39,144-151,160-167", 3: "24-31,40-47,152-159,168-175",
        4: "64-71,112-119,192-199,240-247", 5: "72-79,120-127,200-207,248-255",
        6: "80-87,96-103,208-215,224-231", 7: "88-95,104-111,216-223,232-239",
    }  # fmt: skip
    nics = [binding.nearest_nic(node, device) for device in node.devices]
    assert [nic.name for nic in nics if nic] == [f"mlx5_{number}" for number in range(8)]
    assert [(nic.name, nic.kind, nic.interface) for nic in node.nics][-1] == ("enp97s0f0", "ethernet", "enp97s0f0")
    assert node.nics[0].interface == "ib0"


def test_dgx_a100_in_part(read: Reader) -> None:
    """Two devices with the 32 cores of their domain and its neighbour share the near ones evenly."""
    node = read(trees.dgx_a100, cpus="48-63", devices=(0, 1))
    assert [device.is_allowed for device in node.devices] == [True, True, *[False] * 6]
    assert near(node) == {0: "48-55", 1: "56-63"}


def test_gh200_whole(read: Reader) -> None:
    """Each superchip's device gets its 72 cores; domains that are only a device's memory get nobody."""
    node = read(trees.gh200)
    assert near(node) == {0: "0-71", 1: "72-143", 2: "144-215", 3: "216-287"}
    assert node.numa_memory_bytes[12] == 96 * trees.GIB
    assert node.devices[3].pci == "0309:01:00.0"
    nics = [binding.nearest_nic(node, device) for device in node.devices]
    assert [nic.name for nic in nics if nic] == ["mlx5_0", "mlx5_1", "mlx5_2", "mlx5_3"]


def test_gh200_in_part(read: Reader) -> None:
    """One superchip of a shared node."""
    assert near(read(trees.gh200, cpus="144-215", devices=(2,))) == {2: "144-215"}


def test_v100_whole(read: Reader) -> None:
    """Ten cores of the device's own socket each."""
    node = read(trees.v100)
    assert near(node) == {0: "0-9", 1: "10-19", 2: "20-29", 3: "30-39"}
    assert node.devices[0].model == "Tesla V100-SXM2-32GB"
    assert node.devices[2].uuid == trees.uuid(2)


def test_v100_in_part_takes_what_is_near_first(read: Reader) -> None:
    """With cores mostly at the other socket both ranks' distance together is the least possible."""
    node = read(trees.v100, cpus="0-3,20-29", devices=(0, 2))
    assert near(node) == {0: "0-3,27-29", 2: "20-26"}


def test_workstation_without_numa(read: Reader) -> None:
    """Without NUMA domains the caches are divided, siblings stay together, and the only NIC is the nearest."""
    node = read(trees.workstation)
    assert near(node) == {0: "0-15", 1: "16-31"}
    assert [device.numa for device in node.devices] == [-1, -1]
    assert [nic.name for nic in node.nics] == ["enp5s0"]
    assert binding.nearest_nic(node, node.devices[1]) == node.nics[0]


def test_workstation_in_part_by_a_version_1_cgroup(read: Reader) -> None:
    """The cpuset of a version 1 cgroup is the bound where the mask itself is wider."""
    node = read(trees.workstation, cpus="4-7,20-23", devices=(1,))
    assert node.allowed == (4, 5, 6, 7, 20, 21, 22, 23)
    assert near(node) == {1: "4-7,20-23"}


@pytest.mark.parametrize(("cpuset", "allowed"), [("8-15,40", tuple(range(8, 16))), ("60-63", tuple(range(20)))])
def test_cpuset_narrows_the_mask(tmp_path: Path, cpuset: str, allowed: tuple[int, ...]) -> None:
    """A version 2 cgroup leaves what both it and the mask allow; one that contradicts the mask is another's."""
    root = trees.v100(tmp_path, cpus="0-19")
    trees.Tree(root).write("sys/fs/cgroup/system.slice/slurmstepd.scope/job_7/cpuset.cpus.effective", cpuset)
    assert discover.read(str(root), {}).allowed == allowed


def test_vm_has_cores_and_nothing_else(read: Reader) -> None:
    """A virtual machine without NUMA, caches and devices is divided among ranks without a device."""
    node = read(trees.vm)
    assert node.devices == ()
    assert {cpu.cache for cpu in node.cpus} == {-1}
    assert binding.assign(node, [None, None]) == [(0, 1), (2, 3)]
    assert [(nic.name, nic.pci, nic.bits_per_second) for nic in node.nics] == [("eth0", "0000:00:03.0", 0)]


def test_vm_in_part(read: Reader) -> None:
    """One core of a virtual machine is all that its only rank gets."""
    node = read(trees.vm, cpus="2")
    assert node.allowed == (2,)
    assert binding.assign(node, [None]) == [(2,)]
