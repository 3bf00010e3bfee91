"""`learn` on what Slurm prints, 20.11 to 25.11, and on a real one; `python -m tests.machines.test_learn` rewrites."""

import json
import os
from datetime import date
from pathlib import Path

import pytest
from tests.cluster import Cluster
from tests.machines.asking import RECORDINGS, VERSIONS, SlowHost, host, refused, said
from tests.runs import ECHELON

from echelon.errors import EchelonError
from echelon.host import Finished, RecordedHost, ToolSlow
from echelon.machines import files, load
from echelon.machines import learn as machines_learn
from echelon.machines.learn import Learned, learn
from echelon.machines.machine import Machine, NodeType, Partition
from echelon.machines.write import as_toml
from echelon.scheduler.slurm import site


def written(version: str) -> str:
    learned = learn(host(version))
    return as_toml(learned.machine, comments=learned.remarks)


def read_back(text: str, folder: Path) -> Machine:
    path = folder / "learned.toml"
    path.write_text(text, "utf-8")
    return load.read_file(files.read(str(path)))


def partition(learned: Learned, name: str) -> Partition:
    return next(row for row in learned.machine.partitions if row.name == name)


def kind(learned: Learned, name: str) -> NodeType:
    return next(row for row in learned.machine.node_types if row.name == name)


@pytest.mark.parametrize("version", VERSIONS)
def test_file_of_each_version_is_the_expected_one(version: str) -> None:
    """What is learned from each version is the file beside the recording, whole."""
    assert written(version) == (RECORDINGS / version / "expected.toml").read_text("utf-8")


@pytest.mark.parametrize("version", VERSIONS)
def test_learned_file_loads_again(version: str, tmp_path: Path) -> None:
    """Reading the file gives the very machine that was written."""
    machine = learn(host(version)).machine
    assert read_back(written(version), tmp_path) == machine


def test_reserved_cores_and_memory_are_not_for_jobs() -> None:
    """CPUSpecList is left out of a device's share, MemSpecLimit of the memory."""
    node = kind(learn(host("22.05")), "mi250")
    assert node.reserved_cores == (0, 8, 16, 24, 32, 40, 48, 56)
    assert (node.cores_per_device, node.memory_bytes) == (7, 480 << 30)


def test_exclusive_partition_gives_whole_nodes() -> None:
    """OverSubscribe=EXCLUSIVE is whole nodes; the limit is what the partition has at most."""
    learned = learn(host("22.05"))
    assert [(row.name, row.whole_nodes, row.max_nodes) for row in learned.machine.partitions] == [
        ("standard-g", True, 4),
        ("small-g", False, 4),
    ]


def test_two_threads_of_a_core_are_one_core() -> None:
    """Cores are counted, not CPUs, also where Slurm's defaults for a GPU count CPUs."""
    node = kind(learn(host("23.11")), "a100")
    assert (node.num_cores, node.threads_per_core, node.cores_per_device) == (128, 2, 32)
    assert node.memory_bytes_per_device == 125440 << 20


def test_reserved_cores_without_a_list_are_not_counted() -> None:
    """Where Slurm does not say which cores it keeps, they are taken off the number, and the note says so."""
    node = kind(learn(host("24.05")), "nvidia_h100_80gb_hbm3")
    assert (node.num_cores, node.reserved_cores, node.num_nodes) == (124, (), 3)
    assert "keeps 4 of 128 cores" in node.note


@pytest.mark.parametrize(
    ("version", "name", "reason"),
    [
        ("20.11", "old", "its state is INACTIVE"),
        ("25.05", "admin", "it is hidden, for root alone or for reservations"),
        ("25.05", "root", "it is hidden, for root alone or for reservations"),
        ("25.11", "empty", "it has no nodes that ever registered"),
    ],
)
def test_partition_that_takes_no_jobs_is_left_out(version: str, name: str, reason: str) -> None:
    """A partition that is down, hidden or empty is named in a comment with the reason, and no row."""
    learned = learn(host(version))
    assert name not in [row.name for row in learned.machine.partitions]
    assert f"partition {name} is left out: {reason}" in learned.remarks


@pytest.mark.parametrize(
    ("version", "account", "option"),
    [
        ("20.11", "required", "--gres"),
        ("24.05", "optional", "--gpus-per-node"),
        ("25.11", "optional", "--gpus-per-node"),
    ],
)
def test_account_and_way_of_asking(version: str, account: str, option: str) -> None:
    """Associations need an account; --gpus-per-node is for select/cons_tres."""
    machine = learn(host(version)).machine
    assert (machine.account, machine.device_option) == (account, option)


def test_restrictions_become_the_condition() -> None:
    """Whoever may use a partition is said in its condition."""
    learned = learn(host("23.11"))
    assert partition(learned, "gpusmall").condition == "AllowAccounts=physics,chemistry"
    assert partition(learned, "debug").condition == "AllowGroups=staff"
    assert partition(learned, "debug").max_minutes == 30


def test_partition_of_several_kinds_says_so() -> None:
    """The most frequent kind with devices is taken with its own number of nodes, and the note names the others."""
    main = partition(learn(host("25.11")), "main")
    assert (main.node_type, main.max_nodes) == ("gpu", 3)
    assert "nodes of other kinds: gpu-125g (1), cpu (1)" in main.note


def test_sinfo_is_asked_where_scontrol_is_refused() -> None:
    """Without `scontrol show node` sinfo gives what it knows, and the remark says what it does not."""
    learned = learn(host("22.05", node=refused("slurm_load_node error: Access/permission denied")))
    assert kind(learned, "mi250").num_nodes == 4
    assert kind(learned, "mi250").architecture == ""
    assert "Access/permission denied: echelon used sinfo instead" in learned.remarks[0]


def test_no_slurm_is_said_with_the_repair() -> None:
    """Where scontrol is not installed, the error says where learn works."""
    with pytest.raises(EchelonError, match="there is no Slurm to learn from") as caught:
        learn(RecordedHost(environ={}, answers={}))
    assert caught.value.hint == "on a login node: echelon machines learn"


def test_silent_slurm_has_a_time_limit() -> None:
    """A controller that does not answer ends learn with the seconds that were waited."""
    with pytest.raises(ToolSlow, match="within 10 s"):
        learn(SlowHost())


def test_controller_that_is_down_is_shown() -> None:
    """What scontrol complains of is in the message."""
    with pytest.raises(EchelonError, match="Unable to contact slurm controller"):
        learn(host("22.05", config=refused("slurm_load_ctl_conf error: Unable to contact slurm controller")))


def test_empty_answers_give_an_empty_machine() -> None:
    """A Slurm without partitions and nodes is no crash."""
    learned = learn(host("22.05", partition=said("No partitions in the system\n"), node=said("\n")))
    assert (learned.machine.partitions, learned.machine.node_types) == ((), ())


def test_name_can_be_chosen() -> None:
    """--name names the machine; Slurm's name stays the sign by which it is recognised."""
    machine = learn(host("22.05"), name="mine").machine
    assert (machine.name, machine.clusters) == ("mine", ("mountain",))


GRES_CASES = {
    "gpu:mi250:8(S:0-3)": [("gpu:mi250", 8)],
    "gpu:a100:4(S:0,2),nvme:3600": [("gpu:a100", 4)],
    "gpu:8": [("gpu", 8)],
    "gpu": [("gpu", 1)],
    "gpu:l4:0": [],
    "gpu:a100:3(S:0),gpu:a100_1g.5gb:7(S:1)": [("gpu:a100", 3), ("gpu:a100_1g.5gb", 7)],
    "bandwidth:lustre:no_consume:4G,gpu:1": [("gpu", 1)],
    "(null)": [],
}


@pytest.mark.parametrize("gres", GRES_CASES)
def test_gres_in_all_its_spellings(gres: str) -> None:
    """The devices of a node are read from every documented way to write them."""
    node = site.read_nodes(f"NodeName=a CoresPerSocket=8 Gres={gres} RealMemory=1000 Sockets=1 ThreadsPerCore=1\n")[0]
    assert list(node.devices) == GRES_CASES[gres]


NODE = NodeType(
    source="s", seen=date(2026, 11, 21), name="mi250", chip="mi250", vendor="amd", num_devices=8, gres="gpu:mi250",
    reserved_cores=(48,),
)  # fmt: skip
TODAY = date(2026, 11, 21)
TOPOLOGY = {
    "format": 1,
    "cpus": {"cores": ["48,112", "49,113", "50,114", "57"]},
    "devices": [
        {
            "number": 0,
            "vendor": "amd",
            "numa": 3,
            "cores": [48, 49, 50, 112, 113, 114],
            "pci": "0000:c1:00.0",
            "nic": "hsn0",
            "chip": 0,
            "memory_bytes": 64 << 30,
        },
        {"number": 1, "numa": -1, "cores": [57], "pci": "", "nic": None},
        {"number": 2, "numa": None, "cores": []},
    ],
}


def asked_probe(answer: Finished) -> RecordedHost:
    argv = machines_learn.command("small-g", NODE, archive="a.pyz", options=["--account=p"])
    assert {"--partition=small-g", "--gres=gpu:mi250:8", "--exclusive", "--account=p"} < set(argv)
    return RecordedHost(environ={}, answers={argv: answer})


def test_probe_reads_the_nearest_cores() -> None:
    """Reserved cores and second threads are left out, what a node does not know stays absent."""
    host = asked_probe(said(json.dumps(TOPOLOGY)))
    seen = machines_learn.probe(host, "small-g", NODE, archive="a.pyz", options=["--account=p"], today=TODAY)
    assert (seen.vendor, seen.num_chips, seen.device_memory_bytes) == ("amd", 1, 64 << 30)
    assert [(row.device, row.numa, row.cores, row.pci_bus, row.nic) for row in seen.nearest] == [
        (0, 3, (49, 50), "0000:c1:00.0", "hsn0"),
        (1, None, (57,), "", ""),
    ]


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (Finished(exit_code=1, stdout="", stderr="srun: error: x\nno python3\n"), "ended with 1: no python3"),
        (said("not json"), "gave no topology"),
        (said('{"format": 2}'), "format 2"),
        (said('{"format": 1}'), "gave no topology: KeyError"),
    ],
)
def test_probe_that_fails_says_why(answer: Finished, message: str) -> None:
    """Whatever a node answers is an error with its words, never a traceback."""
    with pytest.raises(EchelonError, match=message):
        machines_learn.probe(
            asked_probe(answer), "small-g", NODE, archive="a.pyz", options=["--account=p"], today=TODAY
        )


@pytest.mark.slurm
def test_learns_from_a_real_slurm(slurm: Cluster, tmp_path: Path) -> None:
    """On the private cluster learn writes a file by which the cluster is recognised and shown at once."""
    environ = {**slurm.environ, "XDG_CONFIG_HOME": str(tmp_path), "PWD": str(tmp_path)}
    learned = slurm.run(*ECHELON, "machines", "learn", env=environ)
    path = learned.stdout.strip()
    assert os.path.dirname(path) == str(tmp_path / "echelon" / "machines")
    shown = slurm.run(*ECHELON, "machines", Path(path).stem, "--json", env=environ)
    machine = json.loads(shown.stdout)["machine"]
    limits = {row["name"]: (row["max_nodes"], row["max_minutes"], row["whole_nodes"]) for row in machine["partition"]}
    assert limits == {"small-g": (4, 4320, False), "standard-g": (4, 2880, True), "dev-g": (4, 180, False)}
    (node,) = machine["node_type"]
    assert (node["num_devices"], node["cores_per_device"], node["memory_bytes"]) == (8, 7, 480 << 30)
    again = slurm.run(*ECHELON, "machines", "learn", env=environ, check=False)
    assert again.returncode == 2
    assert "already exists" in again.stderr
    assert slurm.run(*ECHELON, "machines", "learn", "--force", env=environ).stdout == learned.stdout


@pytest.mark.slurm
def test_probe_runs_on_a_node_of_a_real_slurm(slurm: Cluster, tmp_path: Path) -> None:
    """--probe starts node.pyz on a node: here it sees that the test cluster's devices are none, and says so."""
    environ = {**slurm.environ, "XDG_CONFIG_HOME": str(tmp_path)}
    done = slurm.run(*ECHELON, "machines", "learn", "--probe", "--partition", "dev-g", env=environ)
    text = Path(done.stdout.strip()).read_text()
    assert "the probe found no devices on a node of dev-g" in done.stderr or "[[node_type.nearest]]" in text
    assert [path.suffix for path in (tmp_path / "echelon" / "machines").iterdir()] == [".toml"]


@pytest.mark.slurm
def test_learned_name_is_refused_where_it_is_no_file(slurm: Cluster, tmp_path: Path) -> None:
    """A name that leads out of the folder, or is taken by a command, is refused."""
    environ = {**slurm.environ, "XDG_CONFIG_HOME": str(tmp_path)}
    for name in ("../x", "local", "learn"):
        done = slurm.run(*ECHELON, "machines", "learn", "--name", name, env=environ, check=False)
        assert done.returncode == 2
        assert "--name" in done.stderr
    assert not list(tmp_path.rglob("*.toml"))


if __name__ == "__main__":
    for name in VERSIONS:
        (RECORDINGS / name / "expected.toml").write_text(written(name), "utf-8")
