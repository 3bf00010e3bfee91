"""A cluster like a machine accepts what that machine accepts, refuses what it refuses, and starts in seconds."""

import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import Any

import pytest
from tests.cluster import Cluster, ClusterError
from tests.cluster.fixture import require_tools
from tests.cluster.machines import site_of
from tests.tiers import has, some

from echelon.machines.load import load_shipped
from echelon.machines.machine import Machine, NodeType, Partition, TimeLimit

pytestmark = pytest.mark.slurm

REPOSITORY = Path(__file__).parents[2]
GIB = 1 << 30
ROW: dict[str, Any] = {"source": "this test", "seen": date(2026, 1, 1)}
BIG = NodeType(
    name="big",
    chip="MI250X",
    vendor="amd",
    num_nodes=2978,
    num_devices=8,
    gres="gpu:mi250",
    num_cores=64,
    threads_per_core=2,
    reserved_cores=(0, 8, 16, 24, 32, 40, 48, 56),
    memory_bytes=480 * GIB,
    features=("mi250x",),
    **ROW,
)
SMALL = NodeType(
    name="small",
    chip="A100",
    vendor="nvidia",
    num_devices=4,
    num_cores=128,
    memory_bytes_per_device=100 * GIB,
    memory_follows_devices=True,
    **ROW,
)
BINS = (TimeLimit(max_nodes=2, max_minutes=30, **ROW),)
MACHINE = Machine(
    name="invented",
    title="Invented",
    clusters=("inventedcluster",),
    account="required",
    qos="required",
    node_types=(BIG, SMALL),
    partitions=(
        Partition(name="whole", node_type="big", whole_nodes=True, max_nodes=1024, max_minutes=120, **ROW),
        Partition(name="all", node_type="big", whole_nodes=True, max_nodes=2978, min_nodes=2, **ROW),
        Partition(name="shared", node_type="small", max_nodes=6, max_devices=6, max_cores=96, **ROW),
        Partition(name="large", node_type="small", max_nodes=6, min_devices=8, max_devices_per_node=3, **ROW),
        Partition(name="narrow", node_type="small", max_nodes=2, max_cores_per_node=32, max_jobs=1, **ROW),
        Partition(name="closed", node_type="small", retired_on=date(2023, 1, 1), **ROW),
        Partition(name="bins", node_type="small", max_nodes=6, max_minutes=60, time_limits=BINS, **ROW),
        Partition(name="long", slurm_partition="narrow", qos="long", node_type="small", max_nodes=1, **ROW),
    ),
    **ROW,
)
IDENTITY = ("--account=project_1", "--qos=normal")
POLICY = "Job violates accounting/QOS policy"
NODES = "Node count specification invalid"
TIME = "Requested time limit is invalid"
HARDWARE = "Requested node configuration is not available"


@pytest.fixture(scope="module")
def invented() -> Iterator[Cluster]:
    """Offer one cluster like the invented machine to the tests of this file."""
    require_tools()
    with Cluster.like(MACHINE, num_live_nodes=2) as cluster:
        yield cluster


@pytest.fixture
def cluster(invented: Cluster) -> Cluster:
    """Offer it empty."""
    invented.reset()
    return invented


def submit(cluster: Cluster, partition: str, *options: str) -> "subprocess.CompletedProcess[str]":
    """Submit a job that would do nothing."""
    argv = ("sbatch", "--parsable", "--output=/dev/null", f"--partition={partition}", *IDENTITY, *options)
    return cluster.run(*argv, "--wrap=true", check=False)


def test_cluster_has_the_machines_name_nodes_and_partitions(cluster: Cluster) -> None:
    """All nodes of each kind are known with their hardware, a few are idle, and a closed partition is gone."""
    listed = cluster.run("sinfo", "--noheader", "--format=%R %D %T %l %s %c %m %G %f").stdout.splitlines()
    assert set(listed) == {
        "whole 2 idle 2:00:00 1-1K 128 491520 gpu:mi250:8 mi250x",
        "whole 2976 down 2:00:00 1-1K 128 491520 gpu:mi250:8 mi250x",
        "all 2 idle infinite 2-2978 128 491520 gpu:mi250:8 mi250x",
        "all 2976 down infinite 2-2978 128 491520 gpu:mi250:8 mi250x",
        *(
            f"{name} {count} {state} {most} 128 409600 gpu:4 (null)"
            for name, most in (
                ("shared", "infinite 1-6"),
                ("large", "infinite 1-6"),
                ("narrow", "infinite 1-2"),
                ("bins", "1:00:00 1-6"),
            )
            for count, state in ((2, "idle"), (4, "down"))
        ),
    }
    node = cluster.run("scontrol", "show", "node", "--oneliner", cluster.nodes[1]).stdout
    assert "CPUEfctv=112" in node
    assert "CPUSpecList=0-1,16-17,32-33,48-49,64-65,80-81,96-97,112-113" in node
    assert "ClusterName             = inventedcluster" in cluster.run("scontrol", "show", "config").stdout


@pytest.mark.parametrize(
    ("partition", "options", "shown"),
    [
        ("whole", ("--gpus-per-node=8",), "inventedcluster nid005000 0,1,2,3,4,5,6,7 none"),
        ("shared", ("--gres=gpu:1",), "inventedcluster nid007978 none 0"),
        ("shared", ("--gpus=2",), "inventedcluster nid007978 none 0,1"),
    ],
)
def test_task_sees_the_devices_of_its_partition(
    cluster: Cluster, partition: str, options: tuple[str, ...], shown: str
) -> None:
    """A small job starts at once on a live node and finds its devices in the vendor's variable."""
    script = 'echo "$SLURM_CLUSTER_NAME $SLURMD_NODENAME ${ROCR_VISIBLE_DEVICES-none} ${CUDA_VISIBLE_DEVICES-none}"'
    step = cluster.run("srun", f"--partition={partition}", *IDENTITY, *options, "bash", "-c", script)
    assert step.stdout == f"{shown}\n"


def test_memory_follows_the_devices(cluster: Cluster) -> None:
    """A job that asks for no memory gets each device's share; a whole node comes with all of it."""
    shares = {}
    for partition, options in (("shared", ("--gpus-per-node=2",)), ("whole", ("--gpus-per-node=8",))):
        job = submit(cluster, partition, *options).stdout.strip()
        cluster.wait_job(int(job))
        shares[partition] = cluster.job(int(job))["TRES"]
    assert "mem=200G" in shares["shared"]
    assert "cpu=112,mem=480G" in shares["whole"]


ACCEPTED = [
    ("whole", ("--nodes=1024", "--gpus-per-node=8", "--ntasks-per-node=8", "--time=120")),
    ("all", ("--nodes=2978", "--gpus-per-node=8")),
    ("all", ("--nodes=2",)),
    ("shared", ("--nodes=6", "--gpus-per-node=1")),
    ("shared", ("--nodes=2", "--gres=gpu:3")),
    ("shared", ("--gpus=4", "--ntasks=4", "--cpus-per-task=24")),
    ("large", ("--nodes=4", "--gpus-per-node=2")),
    ("large", ("--gpus=8", "--nodes=3")),
    ("narrow", ("--cpus-per-task=32", "--gpus=1")),
    ("narrow", ("--nodes=1", "--qos=long")),
    ("bins", ("--nodes=2", "--time=30")),
    ("bins", ("--nodes=3", "--time=60")),
]
REFUSED = [
    ("whole", ("--nodes=1025",), NODES),
    ("whole", ("--nodes=1", "--time=121"), TIME),
    ("whole", ("--nodes=1", "--gpus-per-node=9"), HARDWARE),
    ("all", ("--nodes=1",), NODES),
    ("all", ("--nodes=2979",), NODES),
    ("shared", ("--nodes=7", "--gpus-per-node=1"), POLICY),
    ("shared", ("--nodes=7",), NODES),
    ("shared", ("--gpus=7",), POLICY),
    ("shared", ("--nodes=2", "--gpus-per-node=4"), POLICY),
    ("shared", ("--nodes=2", "--gres=gpu:4"), POLICY),
    ("shared", ("--ntasks=7", "--gpus-per-task=1"), POLICY),
    ("shared", ("--ntasks=4", "--cpus-per-task=25"), POLICY),
    ("shared", ("--gpus=4", "--cpus-per-gpu=25"), POLICY),
    ("large", ("--gpus=7",), POLICY),
    ("large", ("--nodes=2", "--gpus-per-node=4"), POLICY),
    ("narrow", ("--cpus-per-task=33",), HARDWARE),
    ("shared,large", ("--gpus=8",), POLICY),
    ("narrow", ("--nodes=2", "--qos=long"), POLICY),
    ("bins", ("--nodes=2", "--time=31"), POLICY),
    ("bins", ("--nodes=3", "--time=61"), POLICY),
]


@pytest.mark.parametrize(("partition", "options"), some(ACCEPTED, 3))
def test_job_at_a_limit_is_accepted(cluster: Cluster, partition: str, options: tuple[str, ...]) -> None:
    """sbatch takes a job of the largest or smallest size, though most of its nodes are down."""
    done = submit(cluster, partition, *options)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(("partition", "options", "reason"), some(REFUSED, 3))
def test_job_past_a_limit_is_refused(cluster: Cluster, partition: str, options: tuple[str, ...], reason: str) -> None:
    """sbatch refuses a job that is one past a limit, with Slurm's own words."""
    done = submit(cluster, partition, *options)
    assert done.returncode == 1
    assert reason in done.stderr


def test_waiting_job_at_the_limit_holds_nobody_up(cluster: Cluster) -> None:
    """While a job of 1024 nodes waits a job of one node starts."""
    waiting = int(submit(cluster, "whole", "--nodes=1024").stdout)
    cluster.wait_job(int(submit(cluster, "whole", "--nodes=1").stdout), timeout=60)
    assert cluster.job(waiting)["JobState"] == "PENDING"


def test_job_without_account_or_qos_is_refused(cluster: Cluster) -> None:
    """A machine that demands an account and a QOS gets both, from sbatch and from srun."""
    for command in (("sbatch", "--wrap=true"), ("srun", "true")):
        program, *rest = command
        account = cluster.run(program, "--qos=normal", *rest, check=False)
        qos = cluster.run(program, "--account=project_1", *rest, check=False)
        assert "Invalid account or account/partition combination specified" in account.stderr
        assert "Invalid qos specification" in qos.stderr


def test_user_has_no_more_jobs_than_allowed(cluster: Cluster) -> None:
    """A job too many is refused while the others wait or run, and accepted when they have ended."""
    began = ("sbatch", "--parsable", "--output=/dev/null", "--partition=narrow", *IDENTITY, "--wrap=sleep 60")
    # Slurm shows the script only what has changed in another second than its last look at the queue.
    time.sleep(1.1)
    first = cluster.run(*began).stdout.strip()
    time.sleep(1.1)
    assert POLICY in cluster.run(*began, check=False).stderr
    cluster.run("scancel", first)
    cluster.wait_job(int(first))
    time.sleep(1.1)
    assert cluster.run(*began).stdout.strip().isdigit()


def test_unknown_facts_have_a_stand_in() -> None:
    """A machine of which only the names are known still has nodes, cores, memory and devices."""
    bare = NodeType(name="bare", chip="B200", vendor="nvidia", gres="gpu:b200", **ROW)
    no_devices = NodeType(name="cpu", chip="", vendor="none", num_nodes=3, **ROW)
    partitions = (Partition(name="b", node_type="bare", **ROW), Partition(name="c", node_type="cpu", **ROW))
    machine = Machine(name="m", title="M", node_types=(bare, no_devices), partitions=partitions, **ROW)
    site = site_of(machine, num_live_nodes=4)
    assert [(kind.num_nodes, kind.num_cores, kind.num_devices) for kind in site.kinds] == [(4, 64, 8), (3, 64, 0)]
    assert len(site.live_nodes) == 7
    assert site.name == "m"


def test_partitions_can_be_chosen() -> None:
    """Only the named partitions and their nodes are there, a closed one too when it is named."""
    site = site_of(MACHINE, partitions=["shared", "closed"], num_live_nodes=16)
    assert [line.split()[0] for line in site.partitions] == ["PartitionName=shared", "PartitionName=closed"]
    assert [kind.gres for kind in site.kinds] == ["gpu"]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"partitions": ["shard"]}, "invented has no partition shard; choose from whole, all, shared"),
        ({"num_live_nodes": 9}, "num_live_nodes is 9 for each of 2 kinds of node; choose from 1 to 8"),
        ({"num_live_nodes": 0}, "choose from 1 to 8"),
    ],
)
def test_cluster_that_cannot_be_is_refused(options: dict[str, Any], said: str) -> None:
    """An unknown partition or too many live nodes are named with the choices."""
    with pytest.raises(ClusterError, match=said):
        Cluster.like(MACHINE, **options)


def test_machine_without_partitions_is_refused() -> None:
    """There is no cluster like a workstation."""
    with pytest.raises(ClusterError, match="invented has no partitions"):
        Cluster.like(replace(MACHINE, partitions=()))


def test_module_starts_a_cluster_like_a_machine() -> None:
    """`python -m tests.cluster --like lumi` runs a command in a cluster of that name."""
    require_tools()
    argv = [sys.executable, "-m", "tests.cluster", "--like=lumi", "--nodes=1", "--exec", "sinfo", "-hpstandard-g"]
    done = subprocess.run(argv, cwd=REPOSITORY, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert "2977   down" in done.stdout


def test_module_names_the_machines_it_knows() -> None:
    """An unknown machine is refused with the known names."""
    argv = [sys.executable, "-m", "tests.cluster", "--like=lumy"]
    done = subprocess.run(argv, cwd=REPOSITORY, capture_output=True, text=True, timeout=60)
    assert done.returncode == 2
    assert "lumi" in done.stderr


ALWAYS = ("lumi", "perlmutter")  # the others differ in numbers alone
MACHINES = [machine for machine in load_shipped().values() if has("all") or machine.name in ALWAYS]


@pytest.mark.parametrize("machine", MACHINES, ids=lambda machine: machine.name)
def test_every_known_machine_keeps_its_limits(machine: Machine, tmp_path: Path) -> None:
    """In each partition of each machine a job of one device starts, the limit is accepted, one more refused."""
    require_tools()
    with Cluster.like(machine, num_live_nodes=1) as cluster:
        for partition in machine.partitions:
            if partition.retired_on is None or machine.retired_on is not None:
                check_start(cluster, machine, partition)
                check_limits(cluster, machine, partition)


def options_of(partition: Partition) -> tuple[str, ...]:
    """Return the options that name a partition, or the QOS in its place."""
    named = {"partition": partition.partition_option, "qos": partition.qos, "constraint": partition.constraint}
    return (*IDENTITY, *(f"--{name}={value}" for name, value in named.items() if value))


def check_start(cluster: Cluster, machine: Machine, partition: Partition) -> None:
    """Start a step on the fewest devices that the partition takes, and read what it sees."""
    if (partition.min_nodes or 1) > 1:
        return  # a single node is live
    kind = machine.node_type(partition)
    script = 'echo "${ROCR_VISIBLE_DEVICES-}${CUDA_VISIBLE_DEVICES-}"'
    gres = f"--gres={kind.gres or 'gpu'}:{partition.min_devices or 1}"
    step = cluster.run("srun", *options_of(partition), gres, "--time=10", "bash", "-c", script)
    assert step.stdout.startswith("0")
    # A whole node's step has what it asked for too.
    assert len(step.stdout.split(",")) == (partition.min_devices or 1)


def check_limits(cluster: Cluster, machine: Machine, partition: Partition) -> None:
    """Submit at each limit that is known, and one past it."""
    kind = machine.node_type(partition)
    fewest = f"--gpus-per-node={partition.min_devices or 1}"
    largest = (partition.max_nodes if partition.time_limits else partition.min_nodes) or 1
    pairs: list[tuple[tuple[str, ...], tuple[str, ...]]] = []
    times = [(limit.max_nodes, limit.max_minutes) for limit in partition.time_limits]
    for nodes, most in (*times, *([(largest, partition.max_minutes)] if partition.max_minutes else [])):
        size = (fewest, f"--nodes={nodes}")
        pairs.append(((*size, f"--time={most}"), (*size, f"--time={most + 1}")))
    if most := partition.max_nodes:
        each = f"--gpus-per-node={(kind.num_devices or 8) if partition.whole_nodes else 1}"
        pairs.append(((f"--nodes={most}", each), (f"--nodes={most + 1}", each)))
    if least := partition.min_nodes:
        pairs.append(((f"--nodes={least}", fewest), (f"--nodes={least - 1}", fewest)))
    if most := partition.max_devices:
        pairs.append(((f"--gpus={most}",), (f"--gpus={most + 1}",)))
    if least := partition.min_devices:
        pairs.append(((f"--gpus={least}",), (f"--gpus={least - 1}",)))
    if most := partition.max_cores:
        pairs.append((("--gpus=1", f"--ntasks={most}"), ("--gpus=1", f"--ntasks={most + 1}")))
    began = ("sbatch", "--parsable", "--output=/dev/null", *options_of(partition))
    for at, past in pairs:
        if (partition.max_jobs or 100) < 3:
            time.sleep(1.1)  # until Slurm shows its script that the job before has ended
        accepted = cluster.run(*began, *at, "--wrap=true", check=False)
        assert accepted.returncode == 0, (partition.name, at, accepted.stderr)
        cluster.run("scancel", accepted.stdout.strip())
        refused = cluster.run(*began, *past, "--wrap=true", check=False)
        assert refused.returncode == 1, (partition.name, past)
