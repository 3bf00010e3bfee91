"""hwloc, which knows nothing of us, sees the same nodes and calls the same cores near."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.topology import hwloc, trees

from echelon.hardware.answers import Device
from echelon.topology import binding, discover
from echelon.topology.devices import LOCAL

FIXTURES = os.environ.get("ECHELON_FIXTURES", "")
RECORDED = {
    "eas-tioga": "rsmi", "epyc-corona": "opencl0d", "cts1-pascal": "cuda", "coral-lassen": "cuda", "g4dnmetal": "cuda",
}  # fmt: skip
recorded = pytest.mark.skipif(not FIXTURES, reason="ECHELON_FIXTURES does not name the folder of recorded topologies")
needs_hwloc = pytest.mark.skipif(
    shutil.which("lstopo") is None and not os.environ.get("CI"), reason="hwloc is not installed"
)
MACHINES = (trees.lumi_g, trees.dgx_a100, trees.gh200, trees.v100)


@needs_hwloc
@pytest.mark.parametrize("machine", MACHINES, ids=lambda machine: machine.__name__)
def test_hwloc_reads_the_same_cores_from_a_tree(machine: Callable[..., Path], tmp_path: Path) -> None:
    """Cores, sockets, NUMA domains and last-level caches of every tree are those that hwloc finds in it."""
    root = str(machine(tmp_path))
    text = hwloc.xml_of(root)
    node = discover.read(root, {})
    assert node.cpus == hwloc.cpus(text)
    assert node.numa_distances == hwloc.distances(text)


@needs_hwloc
def test_hwloc_reads_the_same_cores_of_this_machine() -> None:
    """On the machine that one stands on, hwloc and we see the same."""
    text = hwloc.xml_of("/")
    node = discover.read("/", {})
    theirs = {cpu.number: cpu for cpu in hwloc.cpus(text)}
    assert {cpu.number for cpu in node.cpus} == set(theirs)
    for cpu in node.cpus:
        assert cpu.core == theirs[cpu.number].core
        assert cpu.numa in (-1, theirs[cpu.number].numa)
    assert set(node.allowed) <= os.sched_getaffinity(0)


@needs_hwloc
@pytest.mark.parametrize(
    "synthetic", ["numa:4 l3:2 core:8 pu:2", "pack:2 numa:1 l3:1 core:20 pu:1", "numa:2 core:3 pu:1"]
)
def test_hwloc_s_synthetic_nodes_are_divided_by_domain(synthetic: str, tmp_path: Path) -> None:
    """On a node that hwloc invents, one rank a domain gets exactly the cores that hwloc counts to the domain."""
    path = tmp_path / "synthetic.xml"
    path.write_text(hwloc.xml_of(synthetic))
    node = hwloc.node(path, "none", with_numa=True)
    domains = [seen for seen in hwloc.objects(path.read_text()) if seen.kind == "NUMANode"]
    device = Device(0, "", "", "", "", 0, (), 0, 0, True)
    devices = [device._replace(number=len(domains) - seen.number, numa=seen.number) for seen in domains]
    assert binding.assign(node, devices) == [tuple(sorted(seen.cpus)) for seen in domains]


@pytest.mark.tier("all")
@recorded
@pytest.mark.parametrize("with_numa", [True, False], ids=["numa", "local-cpus"])
@pytest.mark.parametrize("name", RECORDED)
def test_assigned_cores_are_local_to_the_device(name: str, with_numa: bool) -> None:
    """On real nodes each rank's cores are among those that hwloc calls local to its device, if these are enough."""
    node = hwloc.node(Path(FIXTURES) / f"{name}.xml", RECORDED[name], with_numa=with_numa)
    assert node.devices
    core_of = {cpu.number: cpu.core for cpu in node.cpus}
    assigned = binding.assign(node, node.devices)
    quota = len(set(core_of.values())) // len(node.devices)
    for device, cpus in zip(node.devices, assigned, strict=True):
        rivals = [other for other in node.devices if set(other.local_cpus) & set(device.local_cpus)]
        local = {core_of[cpu] for other in rivals for cpu in other.local_cpus}
        assert len({core_of[cpu] for cpu in cpus}) == quota
        if len(local) >= quota * len(rivals):
            assert set(cpus) <= set(device.local_cpus)
            assert binding.distance(node, cpus, device) == LOCAL


@pytest.mark.tier("all")
@recorded
@pytest.mark.parametrize("with_numa", [True, False], ids=["numa", "local-cpus"])
def test_lumi_s_node_type_gives_lumi_s_map(with_numa: bool) -> None:
    """The recorded node of LUMI-G's type, with LUMI's reserved cores, gives LUMI's documented map."""
    node = hwloc.node(Path(FIXTURES) / "eas-tioga.xml", "rsmi", with_numa=with_numa)
    usable = [cpu for cpu in range(64) if cpu % 8]
    assigned = binding.assign(node, node.devices, allowed=usable)
    assert [binding.cpu_list(cpus) for cpus in assigned] == [
        "49-55", "57-63", "17-23", "25-31", "1-7", "9-15", "33-39", "41-47",
    ]  # fmt: skip


@pytest.mark.tier("all")
@recorded
def test_recorded_kfd_tree_is_read() -> None:
    """A recorded tree of MI300 partitions: three devices, the two with one unique number on one chip."""
    devices = discover.read(str(Path(FIXTURES).parent / "kfd-sysfs-dynolog/testing/root"), {}).devices
    assert [(device.model, device.chip) for device in devices] == [("gfx942", 0), ("gfx942", 1), ("gfx942", 1)]
