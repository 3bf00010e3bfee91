"""Say which machine a private cluster imitates: its nodes, its partitions, and what is refused."""

from dataclasses import dataclass

FIRST_NODE = 5000


@dataclass(frozen=True, kw_only=True)
class NodeKind:
    """Nodes that are alike; the first few run a slurmd, the others are only known to Slurm and down."""

    num_live_nodes: int
    num_nodes: int
    first: int = FIRST_NODE
    """Number of the first node, from which the names are made."""
    num_cores: int
    threads_per_core: int = 1
    reserved_cores: tuple[int, ...] = ()
    memory_mib: int
    gres: str = "gpu"
    num_devices: int
    vendor: str
    features: tuple[str, ...] = ()

    @property
    def live_nodes(self) -> list[str]:
        """Return the names of the nodes that run a slurmd."""
        return [_name(self.first + index) for index in range(self.num_live_nodes)]

    @property
    def nodes(self) -> str:
        """Return all names as Slurm writes them: nid[005000-007977]."""
        return _names(self.first, self.num_nodes)

    @property
    def other_nodes(self) -> str:
        """Return the names without slurmd as Slurm writes them; empty when all nodes are live."""
        return _names(self.first + self.num_live_nodes, self.num_nodes - self.num_live_nodes)

    @property
    def gres_type(self) -> str:
        """Return a100 for gpu:a100, and nothing for gpu."""
        return self.gres.partition(":")[2]


@dataclass(frozen=True, kw_only=True)
class Site:
    """What a cluster's slurm.conf says of nodes and partitions."""

    name: str = ""
    """ClusterName; empty: one that no other cluster has."""
    kinds: tuple[NodeKind, ...]
    partitions: tuple[str, ...]
    """The partition lines of slurm.conf."""
    submit_script: str = ""
    """The text of job_submit.lua, which refuses what Slurm has no partition option for."""

    @property
    def live_nodes(self) -> list[str]:
        """Return the names of the nodes that run a slurmd."""
        return [node for kind in self.kinds for node in kind.live_nodes]

    @property
    def num_devices(self) -> int:
        """Return how many devices the largest node has."""
        return max(kind.num_devices for kind in self.kinds)


def lumi_g(num_nodes: int) -> Site:
    """Describe a LUMI-G of a few nodes, all live.

    Limits as LUMI documents them; the memory per core is ours, so that small jobs can share a node.
    """
    kind = NodeKind(
        num_live_nodes=num_nodes,
        num_nodes=num_nodes,
        num_cores=64,
        # The first core of each of the eight core complexes is kept for the operating system.
        reserved_cores=(0, 8, 16, 24, 32, 40, 48, 56),
        memory_mib=480 * 1024,
        gres="gpu:mi250",
        num_devices=8,
        vendor="amd",
    )
    memory = f"DefMemPerCPU={kind.memory_mib // kind.num_cores}"
    return Site(
        kinds=(kind,),
        partitions=(
            f"PartitionName=small-g Nodes=ALL Default=YES MaxNodes=4 MaxTime=3-00:00:00 DefaultTime=01:00:00 {memory}",
            "PartitionName=standard-g Nodes=ALL MaxNodes=1024 MaxTime=2-00:00:00 DefaultTime=01:00:00 "
            "OverSubscribe=EXCLUSIVE",
            f"PartitionName=dev-g Nodes=ALL MaxNodes=32 MaxTime=03:00:00 DefaultTime=00:30:00 {memory}",
        ),
    )


def _names(first: int, count: int) -> str:
    if count <= 1:
        return _name(first) if count else ""
    return f"nid[{first:06d}-{first + count - 1:06d}]"


def _name(number: int) -> str:
    return f"nid{number:06d}"
