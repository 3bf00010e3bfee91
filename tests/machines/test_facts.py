"""The facts that come with echelon: the rules of the data, and the numbers that a person would check first."""

import os
import subprocess
import sys
import zipfile
from datetime import date
from pathlib import Path

import pytest

from echelon.machines import files, load
from echelon.machines.machine import Machine, SourcedFact
from echelon.machines.write import as_toml

NAMES = (
    "alps", "daint", "frontier", "hipergator", "isambard-ai", "leonardo", "lumi", "mahti", "perlmutter", "puhti",
    "roihu", "snellius",
)  # fmt: skip
GIB = 1 << 30


@pytest.fixture(scope="module")
def known() -> dict[str, Machine]:
    return load.load_shipped()


def rows(row: SourcedFact) -> list[SourcedFact]:
    """Return a row and all that are in it."""
    found = [row]
    for name in row.__dataclass_fields__:
        value = getattr(row, name)
        if isinstance(value, tuple) and value and isinstance(value[0], SourcedFact):
            found += [deeper for inner in value for deeper in rows(inner)]
    return found


def test_these_machines_are_known(known: dict[str, Machine]) -> None:
    """The machines are these, each in a file of its name."""
    assert tuple(known) == NAMES
    assert sorted(os.listdir(files.OURS)) == [f"{name}.toml" for name in NAMES]


@pytest.mark.parametrize("name", NAMES)
def test_every_row_says_where_it_is_from(known: dict[str, Machine], name: str) -> None:
    """Each row has a source that can be found and a day that is not in the future."""
    for row in rows(known[name]):
        assert len(row.source) > 6
        assert date(2026, 1, 1) <= row.seen <= date(2026, 11, 30)


@pytest.mark.parametrize("name", NAMES)
def test_writing_a_machine_keeps_it(known: dict[str, Machine], name: str) -> None:
    """What is read from our files and written again is the same machine."""
    machine = known[name]
    again = load.read_file(files.MachineFile(path="", text=as_toml(machine)))
    assert rows(again)[1:] == rows(machine)[1:]


@pytest.mark.parametrize("name", NAMES)
def test_share_of_a_device_fits_its_node(known: dict[str, Machine], name: str) -> None:
    """All devices of a node together have at most its cores and its memory."""
    for kind in known[name].node_types:
        devices = kind.num_devices or 0
        if kind.num_cores and kind.cores_per_device:
            assert devices * kind.cores_per_device <= kind.num_cores - len(kind.reserved_cores)
        if kind.memory_bytes and kind.memory_bytes_per_device:
            assert devices * kind.memory_bytes_per_device <= kind.memory_bytes
        mapped = [core for near in kind.nearest for core in near.cores]
        assert len(mapped) == len(set(mapped))
        assert not set(mapped) & set(kind.reserved_cores)


def test_map_of_lumi(known: dict[str, Machine]) -> None:
    """LUMI's devices have the documented cores, NUMA domains and PCI buses."""
    near = known["lumi"].node_types[0].nearest
    assert [(row.device, row.cores[0], row.cores[-1], len(row.cores), row.numa, row.pci_bus) for row in near] == [
        (0, 49, 55, 7, 3, "c1"), (1, 57, 63, 7, 3, "c6"), (2, 17, 23, 7, 1, "c9"), (3, 25, 31, 7, 1, "ce"),
        (4, 1, 7, 7, 0, "d1"), (5, 9, 15, 7, 0, "d6"), (6, 33, 39, 7, 2, "d9"), (7, 41, 47, 7, 2, "de"),
    ]  # fmt: skip


LIMITS = {
    ("lumi", "small-g"): (4320, 4, None), ("lumi", "standard-g"): (2880, 1024, None),
    ("lumi", "dev-g"): (180, 32, None),
    ("lumi", "bench"): (360, 2978, None), ("lumi", "lumid"): (240, None, 1), ("roihu", "vizinteractive"): (720, 1, 2),
    ("alps", "normal"): (720, None, None), ("alps", "debug"): (22, 4, None), ("daint", "debug"): (30, 2, None),
    ("frontier", "batch"): (720, 9472, None), ("frontier", "extended"): (1440, 64, None),
    ("leonardo", "boost_usr_prod"): (1440, 64, None), ("leonardo", "boost_qos_bprod"): (1440, 256, None),
    ("snellius", "gpu_h100"): (7200, None, None), ("isambard-ai", "workq"): (1440, None, None),
    ("perlmutter", "regular"): (None, None, None), ("hipergator", "hpg-b200"): (20160, None, None),
    ("roihu", "gputest"): (15, 2, None), ("roihu", "gpumedium"): (2160, 4, 4),
    ("roihu", "gpularge"): (2160, 10, None), ("roihu", "gpuinteractive"): (720, 1, None),
    ("mahti", "gputest"): (15, 1, 4), ("mahti", "gpusmall"): (2160, 1, 2), ("mahti", "gpumedium"): (2160, 6, 24),
    ("puhti", "gputest"): (15, 2, 8), ("puhti", "gpu"): (4320, 20, 80),
}  # fmt: skip


@pytest.mark.parametrize(("machine", "partition"), LIMITS)
def test_limits_of_a_partition(known: dict[str, Machine], machine: str, partition: str) -> None:
    """Minutes, nodes and devices of a job are the published ones."""
    row = next(row for row in known[machine].partitions if row.name == partition)
    assert (row.max_minutes, row.max_nodes, row.max_devices) == LIMITS[machine, partition]


SHARES = {
    ("lumi", "mi250x"): (7, 60.0, 480.0), ("roihu", "gh200"): (72, 217.0, 868.0), ("mahti", "a100"): (32, 122.5, 490.0),
    ("puhti", "v100"): (10, 93.0, 373.0), ("hipergator", "b200"): (14, 232.0, 1862.0),
    ("roihu", "l40"): (32, 183.0, 366.0),
    ("snellius", "a100"): (18, 120.0, 480.0), ("snellius", "h100"): (16, 180.0, 720.0),
}  # fmt: skip


@pytest.mark.parametrize(("machine", "kind"), SHARES)
def test_memory_of_a_device_and_a_node(known: dict[str, Machine], machine: str, kind: str) -> None:
    """Cores of a device, its memory and the node's, in GiB."""
    row = next(row for row in known[machine].node_types if row.name == kind)
    assert row.memory_bytes_per_device
    assert row.memory_bytes
    found = (row.cores_per_device, row.memory_bytes_per_device / GIB, row.memory_bytes / GIB)
    assert found == SHARES[machine, kind]


def test_tables_that_a_source_has_whole(known: dict[str, Machine]) -> None:
    """Only where a source lists all partitions is another name a mistake; what nobody listed may be incomplete."""
    assert [name for name, machine in known.items() if machine.complete] == [
        "alps", "daint", "lumi", "mahti", "puhti", "roihu",
    ]  # fmt: skip
    assert not Machine(name="m", title="M", source="a page", seen=date(2026, 1, 1)).complete


def test_retired_machines_name_their_successor(known: dict[str, Machine]) -> None:
    """Puhti and Mahti are shut down, and Roihu comes after them."""
    retired = {name: (machine.retired_on, machine.successor) for name, machine in known.items() if machine.retired_on}
    assert retired == {"puhti": (date(2026, 7, 31), "roihu"), "mahti": (date(2026, 8, 31), "roihu")}


def test_rdma_level_of_lumi_has_its_conditions(known: dict[str, Machine]) -> None:
    """PHB is set up to 256 nodes and below ROCm 6.2."""
    (row,) = [row for row in known["lumi"].settings if row.name == "NCCL_NET_GDR_LEVEL"]
    assert (row.value, row.max_nodes, row.below_rocm) == ("PHB", 256, "6.2")


@pytest.mark.parametrize("name", NAMES)
def test_folders_of_settings_are_of_a_job_and_a_node(known: dict[str, Machine], name: str) -> None:
    """No two jobs and no two nodes share a cache."""
    for row in known[name].settings:
        if row.kind == "folder":
            assert {"{user}", "{job_id}", "{node_rank}", "{scratch}"} <= {
                *row.value.replace("}", "} ").replace("{", " {").split()
            }


def test_wheel_has_the_data(tmp_path: Path) -> None:
    """Whoever installs echelon has the machine files."""
    root = Path(__file__).parents[2]
    build = pytest.importorskip("hatchling.builders.wheel", reason="hatchling is not installed")
    (wheel,) = build.WheelBuilder(str(root)).build(directory=str(tmp_path), versions=["standard"])
    with zipfile.ZipFile(wheel) as archive:
        inside = {name for name in archive.namelist() if name.endswith(".toml")}
    assert inside >= {f"echelon/machines/data/{name}.toml" for name in NAMES}


def test_one_machine_is_shown_without_what_is_slow_to_import() -> None:
    """`echelon machines lumi` is there before one notices, because it imports nothing that takes long."""
    code = (
        "import sys; from echelon.cli import main; main(['machines', 'lumi'])\n"
        "print(*({'torch', 'asyncio', 'multiprocessing', 'subprocess', 'ssl'} & {*sys.modules}), file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stderr.split() == []
