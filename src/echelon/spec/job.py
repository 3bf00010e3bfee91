"""What a user asks for."""

from dataclasses import dataclass

from echelon.scale_options import DEFAULT, ScaleOptions
from echelon.spec.launcher import Launcher

ONE_PER_DEVICE = 0  # ranks per node: as many as the node has devices, one where it has none
ALL_NODES = 0  # number of nodes: all of the allocation, or this machine


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """What every rank runs."""

    kind: str
    """"script" (a path), "module" (as after python -m) or "program" (any executable)."""
    target: str
    arguments: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A run as it was asked for on the command line."""

    command: Command
    ranks_per_node: int = ONE_PER_DEVICE
    min_nodes: int = ALL_NODES
    num_nodes: int = ALL_NODES
    cpus_per_rank: int = 0
    """0: the share of the node's."""
    launch: str = "warm"
    """"warm" (import once a node, fork ranks), "exec" (a process each) or "tasks" (a Slurm task each)."""
    visible: str = "all"
    """"all": every rank sees the node's devices; "own": only its own, as device 0."""
    bind: str = "auto"
    """"auto": cores nearest to each rank's device; "strict": the same, or stop; "off"."""
    container: str = ""
    """The image that agents and ranks run in; empty: none."""
    container_binds: tuple[str, ...] = ()
    """Folders to be seen inside, as SRC, SRC:DST or SRC:DST:ro."""
    global_batch: int = 0
    """Samples of one step over all ranks, divided and passed on; 0: the script knows."""
    scale: str = "auto"
    """"off": the script runs as it is; "data" or "fsdp": one written for a single device is trained on all of them;
    "auto": the script tells which."""
    scale_options: ScaleOptions = DEFAULT
    """How, apart from the way, which `scale` says."""
    share_devices: bool = False
    """Whether more ranks than devices are meant."""
    environ: tuple[tuple[str, str], ...] = ()
    run_directory: str = ""
    """Empty: a new one under echelon-runs/."""
    name: str = "none"
    """What ranks see as TORCHELASTIC_RUN_ID; torchrun's default is "none"."""
    show: frozenset[int] | None = frozenset({0})
    """Ranks whose output is live on the console; None for all."""
    debug: int = -1
    """The rank that reads this command's standard input; -1: a single rank does."""
    timeout_seconds: float = 0.0
    """0: no limit."""
    max_restarts: int = 0
    node_rank: int = -1
    """This machine's place among nodes that are started by hand; -1: not said."""
    rendezvous: str = ""
    """host:port where nodes that are started by hand meet; empty: not said."""
    launcher: Launcher | None = None
    """Whose command line was given, if any."""
