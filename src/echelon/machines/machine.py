"""The facts of a machine: the rows of its TOML file. None means unpublished."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date


@dataclass(frozen=True, slots=True, kw_only=True)
class SourcedFact:
    """One published fact, or several facts from one source."""

    source: str
    """The source: a page, a file of a repository, a ticket."""
    seen: date
    """The day when the fact was last found there (TOML: `date`)."""
    note: str = ""
    """The chosen one of several disagreeing sources, and why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NearestCores(SourcedFact):
    """The cores, the NUMA domain and the NIC that one device is attached to."""

    device: int
    numa: int | None = None
    cores: tuple[int, ...]
    """Usable cores, reserved ones left out (TOML: "49-55")."""
    pci_bus: str = ""
    nic: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeType(SourcedFact):
    """A type of node."""

    name: str
    chip: str
    """The chip as it is sold: "MI250X", "A100"."""
    vendor: str
    """The name of a vendor, "none" for a node without devices, or "unknown"."""
    num_nodes: int | None = None
    num_chips: int | None = None
    num_devices: int | None = None
    """Devices as a framework counts them: an MI250X is one chip and two devices."""
    device_memory_bytes: int | None = None
    gres: str = ""
    """Slurm's name of the device: "gpu:a100"; plain "gpu" if it has no type."""
    features: tuple[str, ...] = ()
    """Names with which a job can request this type of node (`--constraint`)."""
    architecture: str = ""
    """The output of `uname -m`: "x86_64", "aarch64"."""
    num_cores: int | None = None
    threads_per_core: int | None = None
    """Hardware threads that Slurm hands out for each core."""
    reserved_cores: tuple[int, ...] = ()
    """Cores that jobs never get."""
    memory_bytes: int | None = None
    """The memory that jobs can get of one node."""
    cores_per_device: int | None = None
    """The fair share of one device."""
    memory_bytes_per_device: int | None = None
    memory_follows_devices: bool = False
    """Whether Slurm gives memory with devices, so that a job must not request it."""
    local_disk: str = ""
    """Facts about the node's own disk, for people."""
    scratch: str = ""
    """A directory on the node's own disk, as shell text: "/tmp", "$LOCAL_SCRATCH"."""
    nearest: tuple[NearestCores, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeLimit(SourcedFact):
    """The time limit of jobs that are not larger than this."""

    max_nodes: int
    max_minutes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Partition(SourcedFact):
    """A partition, or a QOS that has limits of its own, with all published limits."""

    name: str
    node_type: str
    slurm_partition: str = ""
    """Slurm's partition, if it has another name; "none" where jobs name a QOS instead."""
    qos: str = ""
    """The QOS with these limits; empty: any."""
    constraint: str = ""
    """The features that a job must request (`--constraint`)."""
    purpose: str = "batch"
    """"batch", "test" (short trials), "interactive", "request" (only after an application), "unconfirmed"."""
    preference: int = 0
    """Of two partitions with equal cost, the one with the lower number is chosen."""
    preferred_because: str = ""
    """The reason, if the site gives one."""
    whole_nodes: bool = False
    """Whether nodes are allocated and billed whole."""
    max_minutes: int | None = None
    """The limit for the largest jobs."""
    time_limits: tuple[TimeLimit, ...] = ()
    """Other time limits of smaller jobs, the smallest jobs first."""
    min_nodes: int | None = None
    max_nodes: int | None = None
    """The limit for one job."""
    min_devices: int | None = None
    max_devices: int | None = None
    """The limit for one job."""
    max_devices_per_node: int | None = None
    max_cores: int | None = None
    """The limit for one job."""
    max_cores_per_node: int | None = None
    max_memory_bytes_per_node: int | None = None
    max_jobs: int | None = None
    """The limit of one user's waiting and running jobs."""
    max_running_jobs: int | None = None
    condition: str = ""
    """The condition or application that is needed before use."""
    retired_on: date | None = None

    @property
    def partition_option(self) -> str:
        """Return the value of `--partition`; empty where jobs do not give it."""
        return "" if self.slurm_partition == "none" else self.slurm_partition or self.name

    def max_minutes_on(self, num_nodes: int) -> int | None:
        """Return the time limit of a job of this size."""
        return next((row.max_minutes for row in self.time_limits if num_nodes <= row.max_nodes), self.max_minutes)


@dataclass(frozen=True, slots=True, kw_only=True)
class Billing(SourcedFact):
    """The cost of an hour: `per_node_hour`, or else factor × max(cores/…, memory/…, devices), each rounded up."""

    partitions: tuple[str, ...]
    unit: str
    """The unit of the bill: "GPU-hours"."""
    per_node_hour: float | None = None
    factor: float | None = None
    cores_per_unit: int | None = None
    memory_bytes_per_unit: int | None = None
    price_per_unit: float | None = None
    """What the site asks of people who pay for a unit."""
    currency: str = ""
    """"EUR", "USD"."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Grid(SourcedFact):
    """The electricity of the grid that feeds the machine."""

    region: str
    """The number is the mean of this region: "Finland"."""
    year: int
    grams_co2_per_kwh: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting(SourcedFact):
    """An environment variable that every rank needs on this machine."""

    name: str
    value: str
    """May contain {user}, {job_id}, {node_rank}, {scratch}."""
    why: str
    kind: str = "value"
    """"value"; or "folder": the value names a folder that each node creates before the ranks start."""
    max_nodes: int | None = None
    """Not set for larger jobs."""
    min_nodes: int | None = None
    """Not set for smaller jobs."""
    below_rocm: str = ""
    """Needed only with a ROCm older than this: "6.2"."""
    node_types: tuple[str, ...] = ()
    """Empty: all node types."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Container(SourcedFact):
    """A convention of this machine for starting containers."""

    name: str
    images: str = ""
    """A glob of the images that the convention applies to; empty: any image."""
    runtime: str = "singularity"
    command: str = "exec"
    """"exec", or "run" where the image's start-up script must run."""
    gpu_option: str = ""
    """"--rocm", "--nv", or empty if binds do the same."""
    binds: tuple[str, ...] = ()
    modules: tuple[str, ...] = ()
    """Lines for the batch script that set up the binds."""
    start_line: str = ""
    """A shell line that runs first inside the container: "$WITH_CONDA"."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Modules(SourcedFact):
    """Module commands that provide a Python with its framework."""

    framework: str
    lines: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Quirk(SourcedFact):
    """A surprising property of the machine, with the repair."""

    about: str
    """The topic: "slurm", "network", "binding", "storage"."""
    text: str
    since: str = ""
    until: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Network(SourcedFact):
    """The fast network."""

    kind: str
    """"slingshot", "infiniband", "ethernet"."""
    interfaces: tuple[str, ...] = ()
    """Interface names for sockets; empty: unpublished."""
    link_bits_per_second: int | None = None
    links_per_node: int | None = None
    plugin: str = ""
    """The library that collectives need for this network: "aws-ofi-rccl"."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reference(SourcedFact):
    """The all-reduce performance of healthy nodes."""

    node_type: str
    num_nodes: int
    ranks_per_node: int
    backend: str
    """"nccl", which includes RCCL, or "gloo"."""
    num_bytes: int
    """The size of the reduced data."""
    bus_bytes_per_second: int
    """As defined by nccl-tests: bytes by seconds, times 2 (n - 1) / n."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine(SourcedFact):
    """A computer centre's system, or a workstation."""

    name: str
    title: str
    site: str = ""
    clusters: tuple[str, ...] = ()
    """Slurm's ClusterName."""
    login_hosts: tuple[str, ...] = ()
    """Globs of its login nodes' names."""
    retired_on: date | None = None
    successor: str = ""
    account: str = "optional"
    """"required", "optional"."""
    qos: str = "optional"
    device_option: str = "--gpus-per-node"
    """The option that requests devices: "--gpus-per-node" or "--gres"."""
    complete: bool = False
    """Whether the rows are all partitions with devices; if not, a job may name others."""
    partitions_without_devices: tuple[str, ...] = ()
    """The other partitions, as far as they are known."""
    partitions: tuple[Partition, ...] = ()
    node_types: tuple[NodeType, ...] = ()
    billing: tuple[Billing, ...] = ()
    grids: tuple[Grid, ...] = ()
    settings: tuple[Setting, ...] = ()
    containers: tuple[Container, ...] = ()
    modules: tuple[Modules, ...] = ()
    networks: tuple[Network, ...] = ()
    references: tuple[Reference, ...] = ()
    quirks: tuple[Quirk, ...] = ()
    path: str = ""
    """The file of the machine."""

    def node_type(self, partition: Partition) -> NodeType:
        """Return the node type of a partition; one without facts for a partition that has no row."""
        unknown = NodeType(source=partition.source, seen=partition.seen, name="", chip="", vendor="unknown", gres="gpu")
        return next((kind for kind in self.node_types if kind.name == partition.node_type), unknown)

    @property
    def usual_node_types(self) -> tuple[NodeType, ...]:
        """Return the node types of the partitions that are open to all jobs; all node types if there are none."""
        names = {row.node_type for row in self.partitions if row.purpose == "batch" and row.retired_on is None}
        return tuple(kind for kind in self.node_types if kind.name in names) or self.node_types

    def rows(self, partition: str, qos: str) -> tuple[Partition, ...]:
        """Return the rows that `--partition` and `--qos` name together; an empty text names all."""
        rows = [row for row in self.partitions if partition in ("", row.name, row.partition_option)]
        of_qos = [row for row in rows if row.qos == qos]
        return tuple(of_qos or [row for row in rows if not row.qos] if qos else rows)
