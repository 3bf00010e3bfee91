"""What is known of a machine: the rows of its TOML file. None means that nobody has published it."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One published fact, or several from one place."""

    source: str
    """Where it is published: a page, a file of a repository, a ticket."""
    seen: date
    """When it was last found there (TOML: `date`)."""
    note: str = ""
    """Which of several disagreeing sources was chosen, and why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NearestCores(Row):
    """The cores, the NUMA domain and the NIC that one device is attached to."""

    device: int
    numa: int | None = None
    cores: tuple[int, ...]
    """Usable cores, reserved ones left out (TOML: "49-55")."""
    pci_bus: str = ""
    nic: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeType(Row):
    """One kind of node."""

    name: str
    chip: str
    """What one buys: "MI250X", "A100"."""
    vendor: str
    """"amd", "nvidia", "none" for a node without devices, or "unknown"."""
    num_nodes: int | None = None
    num_chips: int | None = None
    num_devices: int | None = None
    """What the framework sees: an MI250X is one chip and two devices."""
    device_memory_bytes: int | None = None
    gres: str = ""
    """What Slurm calls the device: "gpu:a100"; plain "gpu" where it has no type."""
    features: tuple[str, ...] = ()
    """Names by which a job can insist on this kind of node (`--constraint`)."""
    architecture: str = ""
    """As `uname -m` says: "x86_64", "aarch64"."""
    num_cores: int | None = None
    threads_per_core: int | None = None
    """Hardware threads that Slurm hands out for each core."""
    reserved_cores: tuple[int, ...] = ()
    """Cores that jobs never get."""
    memory_bytes: int | None = None
    """What jobs can get of one node."""
    cores_per_device: int | None = None
    """The fair share of one device."""
    memory_bytes_per_device: int | None = None
    memory_follows_devices: bool = False
    """Whether Slurm gives memory by device, so that a job must not ask for it."""
    local_disk: str = ""
    """What is known of the node's own disk, for people."""
    scratch: str = ""
    """A directory of the node's own, as a shell text: "/tmp", "$LOCAL_SCRATCH"."""
    nearest: tuple[NearestCores, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Partition(Row):
    """One partition with every limit that is published."""

    name: str
    node_type: str
    purpose: str = "batch"
    """"batch", "test" (short trials), "interactive", "request" (only after an application), "unconfirmed"."""
    preference: int = 0
    """Which of two partitions that cost the same is taken: the lower."""
    preferred_because: str = ""
    """Why, where the site says so."""
    whole_nodes: bool = False
    """Whether nodes are allocated, and billed, whole."""
    max_minutes: int | None = None
    min_nodes: int | None = None
    max_nodes: int | None = None
    """Nodes of one job."""
    min_devices: int | None = None
    max_devices: int | None = None
    """Devices of one job."""
    max_devices_per_node: int | None = None
    max_cores: int | None = None
    """Cores of one job."""
    max_cores_per_node: int | None = None
    max_memory_bytes_per_node: int | None = None
    max_jobs: int | None = None
    """Jobs of one user, waiting and running."""
    max_running_jobs: int | None = None
    condition: str = ""
    """What must be shown or applied for before one may use it."""
    retired_on: date | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Billing(Row):
    """What an hour costs: `per_node_hour`, or else factor × max(cores/…, memory/…, devices), each rounded up."""

    partitions: tuple[str, ...]
    unit: str
    """What is counted: "GPU-hours"."""
    per_node_hour: float | None = None
    factor: float | None = None
    cores_per_unit: int | None = None
    memory_bytes_per_unit: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting(Row):
    """An environment variable that every rank needs on this machine."""

    name: str
    value: str
    """May hold {user}, {job_id}, {node_rank}, {scratch}."""
    why: str
    kind: str = "value"
    """"value"; or "folder": the value names a folder that is made on each node before the ranks start."""
    max_nodes: int | None = None
    """Not set for larger jobs."""
    min_nodes: int | None = None
    """Not set for smaller jobs."""
    below_rocm: str = ""
    """Needed only by ROCm older than this: "6.2"."""
    node_types: tuple[str, ...] = ()
    """Empty: all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Container(Row):
    """One convention by which containers are started here."""

    name: str
    images: str = ""
    """A glob of the images that it is for; empty: any image."""
    runtime: str = "singularity"
    command: str = "exec"
    """"exec", or "run" where the image's start-up script must run."""
    gpu_option: str = ""
    """"--rocm", "--nv", or empty where the binds do it."""
    binds: tuple[str, ...] = ()
    modules: tuple[str, ...] = ()
    """Lines for the batch script that set the binds up."""
    start_line: str = ""
    """A shell line inside the container, before anything else: "$WITH_CONDA"."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Modules(Row):
    """Module lines that give a Python with its framework."""

    framework: str
    lines: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Quirk(Row):
    """Something that surprises, with the repair."""

    about: str
    """What it concerns: "slurm", "network", "binding", "storage"."""
    text: str
    since: str = ""
    until: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Network(Row):
    """The fast network."""

    kind: str
    """"slingshot", "infiniband", "ethernet"."""
    interfaces: tuple[str, ...] = ()
    """Names for sockets; empty: not published."""
    link_bits_per_second: int | None = None
    links_per_node: int | None = None
    plugin: str = ""
    """The library that the collectives need beside them: "aws-ofi-rccl"."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reference(Row):
    """What all-reduce reaches on nodes that are well."""

    node_type: str
    num_nodes: int
    ranks_per_node: int
    backend: str
    """"nccl", which stands for RCCL too, or "gloo"."""
    num_bytes: int
    """The size that is reduced."""
    bus_bytes_per_second: int
    """As nccl-tests define it: bytes by seconds, times 2 (n - 1) / n."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine(Row):
    """A computer centre's system, or a workstation."""

    name: str
    title: str
    site: str = ""
    clusters: tuple[str, ...] = ()
    """Slurm's ClusterName."""
    login_hosts: tuple[str, ...] = ()
    """Globs of the names of its login nodes."""
    retired_on: date | None = None
    successor: str = ""
    account: str = "optional"
    """"required", "optional"."""
    qos: str = "optional"
    device_option: str = "--gpus-per-node"
    """How a job asks for devices: "--gpus-per-node" or "--gres"."""
    partitions: tuple[Partition, ...] = ()
    node_types: tuple[NodeType, ...] = ()
    billing: tuple[Billing, ...] = ()
    settings: tuple[Setting, ...] = ()
    containers: tuple[Container, ...] = ()
    modules: tuple[Modules, ...] = ()
    networks: tuple[Network, ...] = ()
    references: tuple[Reference, ...] = ()
    quirks: tuple[Quirk, ...] = ()
    path: str = ""
    """The file that it was read from."""

    def node_type(self, partition: Partition) -> NodeType:
        """Return the kind of node of a partition."""
        return next(kind for kind in self.node_types if kind.name == partition.node_type)
