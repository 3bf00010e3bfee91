"""A user's request for a run: the script, the launcher of its command line, and what it asks of a machine."""

from dataclasses import dataclass

from echelon.orders.checkpoint import CheckpointOrder
from echelon.orders.scale import DEFAULT, ScaleOptions
from echelon.spec.staged import StageRequest
from echelon.spec.tracker import Tracker


@dataclass(frozen=True, slots=True, kw_only=True)
class Launcher:
    """The parts of another launcher's command line that are no options of `echelon run`."""

    name: str
    """"torchrun", "accelerate launch", "mpirun" …"""
    num_ranks: int = 0
    """Ranks on all nodes together; 0: not stated."""
    num_ranks_text: str = ""
    """The words that state the number of ranks."""
    hosts: tuple[str, ...] = ()
    """Machines that the line names, except this one."""
    rank_argument: str = ""
    """The prefix of the local rank in an extra first argument of each rank, "--local_rank="; empty: no argument."""
    mpi: str = ""
    """The program that starts the ranks of MPI: "mpirun" or "horovodrun", or one of Slurm's own protocols
    ("pmix", "pmi2"); empty: echelon.
    """
    words: tuple[str, ...] = ()
    """mpirun or horovodrun with their options; the program follows."""

    @property
    def is_step(self) -> bool:
        """Whether the launcher itself starts the ranks' agents."""
        return self.mpi in ("mpirun", "horovodrun")


ONE_PER_DEVICE = 0  # ranks per node: one for each device of the node, one rank without devices
ALL_NODES = 0  # number of nodes: the whole allocation, or this machine


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """The command of every rank."""

    kind: str
    """"script" (a path), "module" (as after python -m) or "program" (any executable)."""
    target: str
    arguments: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A run as requested on the command line."""

    command: Command
    ranks_per_node: int = ONE_PER_DEVICE
    min_nodes: int = ALL_NODES
    num_nodes: int = ALL_NODES
    hosts: tuple[str, ...] = ()
    """The nodes by the names that ssh knows; empty: those of the allocation, or this machine."""
    num_spares: int = 0
    """Further nodes, which wait to take the place of lost ones."""
    cpus_per_rank: int = 0
    """0: the rank's share of the node's cores."""
    launch: str = "warm"
    """"warm" (import once a node, fork ranks), "exec" (a process each) or "tasks" (a Slurm task each)."""
    visible: str = "all"
    """"all": every rank sees the node's devices; "own": only its own, as device 0."""
    bind: str = "auto"
    """"auto": the cores nearest to each rank's device; "strict": the same, and stop if that fails; "off"."""
    container: str = ""
    """The image for agents and ranks; empty: no container."""
    container_binds: tuple[str, ...] = ()
    """Folders to bind into the container, as SRC, SRC:DST or SRC:DST:ro."""
    global_batch: int = 0
    """Samples of one step over all ranks, divided and passed on; 0: the script's own batch size."""
    scale: str = "auto"
    """"off": the script runs unchanged; "data" or "fsdp": a script for one device is trained on all ranks;
    "auto": the script decides.
    """
    scale_options: ScaleOptions = DEFAULT
    """The options of scaling, except the way in `scale`."""
    checkpoints: CheckpointOrder | None = None
    """What ranks save; an empty folder is that of the run. None: nothing."""
    share_devices: bool = False
    """Whether more ranks than devices are intended."""
    environ: tuple[tuple[str, str], ...] = ()
    run_directory: str = ""
    """Empty: a new directory under echelon-runs/."""
    name: str = "none"
    """The value of TORCHELASTIC_RUN_ID in ranks; torchrun's default is "none"."""
    show: frozenset[int] | None = frozenset({0})
    """Ranks whose output is shown live; None: all ranks."""
    debug: int = -1
    """The rank that reads this command's standard input; -1: only a single rank does."""
    timeout_seconds: float = 0.0
    """0: no limit."""
    hang_timeout: float | str = "auto"
    """Seconds without a step and without output; "auto": learned from the run's steps; "off": hangs are not noticed."""
    max_restarts: int = 0
    uses_pool: bool = True
    """Whether ranks may be forked from what a pool of their node has imported."""
    node_rank: int = -1
    """This machine's rank among nodes that are started by hand; -1: not stated."""
    rendezvous: str = ""
    """host:port at which nodes that are started by hand meet; empty: not stated."""
    launcher: Launcher | None = None
    """The launcher whose command line was given, if any."""
    trackers: tuple[Tracker, ...] = ()
    stage_data: tuple[StageRequest, ...] = ()
    """Data to bring to the nodes' own disks."""
    stages_software: bool = False
    """Whether the environment of this Python, or the container's image, is brought there too."""

    @property
    def mpi(self) -> str:
        """Return what starts the ranks of MPI, as in `Launcher`; empty: echelon starts them."""
        return self.launcher.mpi if self.launcher is not None else ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """Requested resources; 0 and empty mean not stated."""

    num_devices: int = 0
    num_nodes: int = 0
    """With num_devices: the nodes that share the devices; alone: whole nodes."""
    devices_per_node: int = 0
    """Without num_devices: the devices of one node."""
    whole_nodes: bool = False
    """Whether the job wants the nodes for itself."""
    partition: str = ""
    chip: str = ""
    minutes: int = 0
    cores_per_device: int = 0
    cpus_per_rank: int = 0
    """As Slurm counts them for a task: hardware threads, if it hands those out."""
    memory_bytes_per_device: int = 0
    memory_bytes_per_node: int = 0
    account: str = ""
    qos: str = ""
    reservation: str = ""
    global_batch: int = 0
    """Samples of one optimizer step over all ranks."""
