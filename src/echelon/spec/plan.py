"""The decisions for a run, each with its reason, and the command prefix of a container."""

from dataclasses import dataclass

from echelon.orders.scale import ScaleOptions
from echelon.spec.booking import Reason, Variable
from echelon.spec.job import Launcher
from echelon.spec.staged import Staged
from echelon.spec.tracker import Tracker


@dataclass(frozen=True, slots=True, kw_only=True)
class Container:
    """The words before a command that run it inside a container, and the preparations outside."""

    image: str
    prefix: tuple[str, ...]
    modules: tuple[str, ...] = ()
    """Lines for a batch script: modules that set the site's binds."""
    convention: str = ""
    """The machine's convention in use, for the run's log."""


RUNS = "echelon-runs"  # the default folder of run directories


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """A job resolved on this machine."""

    run_id: str
    name: str
    python: str
    """The interpreter of the agents, and of ranks that run Python."""
    argv: tuple[str, ...]
    """The command of each rank: (python, script, arguments…) or (program, arguments…)."""
    is_python: bool
    preload: tuple[str, ...]
    own: tuple[str, ...]
    """Top-level modules that are the script's own, even if an installed package has the same name."""
    packages: tuple[str, ...]
    """Top-level packages outside Python's standard library that the script uses, as far as reading tells."""
    folder: str
    """The first entry of the script's sys.path."""
    where: str
    """"here", "slurm" (one step over the allocation's nodes) or "meet" (each node is started by hand)."""
    job_id: str
    """Slurm's job number; empty outside of an allocation."""
    nodes: tuple[str, ...]
    num_nodes: int
    min_nodes: int
    """The least number of nodes with which a new attempt continues after losses."""
    num_spares: int
    """Nodes beyond `num_nodes` that wait to take the place of lost ones; `nodes` names them too."""
    ranks_per_node: int
    """0: one rank for each device of a node."""
    devices_per_node: int
    """0: none, or unknown before the nodes answer."""
    cpus_per_rank: int
    """Hardware threads; 0: the rank's share of the node."""
    launch: str
    visible: str
    bind: str
    reserved_cores: tuple[int, ...]
    """Cores that the machine reserves, whatever the mask allows."""
    documented_cores: tuple[tuple[int, tuple[int, ...]], ...]
    """Devices with their nearest cores from the machine's facts; empty if not published."""
    variables: tuple[Variable, ...]
    """The machine's settings, without those to which the user gave another value."""
    container: Container | None
    scale_options: ScaleOptions | None
    """None: the script runs unchanged."""
    scale_why: str
    share_devices: bool
    environ: tuple[tuple[str, str], ...]
    run_directory: str
    show: frozenset[int] | None
    stdin_rank: int
    """The rank that reads this command's standard input; -1: no rank."""
    timeout_seconds: float
    hang_timeout: float | str
    """Seconds, "auto" or "off"."""
    max_restarts: int
    rendezvous: str
    node_rank: int
    step: tuple[str, ...]
    """The command before the agent's own that starts the agents; empty: agents are children."""
    slurm_signals_ranks: bool
    """Whether Slurm's signals reach the ranks without the agents."""
    launcher: Launcher | None
    """The launcher whose command line was given, if any."""
    reasons: tuple[Reason, ...]
    notes: tuple[str, ...] = ()
    """Messages for the user before the start."""
    uses_pool: bool = True
    """Whether ranks may be forked from what a pool of their node has imported."""
    machine: str = ""
    """The name of the machine; empty: echelon does not know it."""
    trackers: tuple[Tracker, ...] = ()
    """Those asked for, without those to which the script itself logs."""
    may_use_horovod: bool = False
    """Whether the script's Python may have Horovod, which trains alone in ranks that MPI has not started."""

    @property
    def mpi(self) -> str:
        """Return what starts the ranks of MPI, as in `Launcher`; empty: echelon starts them."""
        return self.launcher.mpi if self.launcher is not None else ""

    @property
    def has_allocation(self) -> bool:
        """Whether the agents are tasks of a step in an allocation."""
        return self.where == "slurm"

    @property
    def agents_forward_signals(self) -> bool:
        """Whether a signal to the job reaches the agents alone."""
        return not self.slurm_signals_ranks

    @property
    def scale(self) -> str:
        """The way to scale the script; "off": it runs unchanged."""
        return "off" if self.scale_options is None else self.scale_options.how

    staged: tuple[Staged, ...] = ()
    """What is brought to the nodes' own disks before the start."""
