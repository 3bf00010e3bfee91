"""What was decided for a run, with the reason for each decision."""

from dataclasses import dataclass

from echelon.scale_options import ScaleOptions
from echelon.spec.booking import Variable
from echelon.spec.container import Container
from echelon.spec.launcher import Launcher
from echelon.spec.reason import Reason


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """A job resolved on the machine at hand."""

    run_id: str
    name: str
    python: str
    """The interpreter of the agents, and of the ranks where they run Python."""
    argv: tuple[str, ...]
    """What each rank executes: (python, script, arguments…) or (program, arguments…)."""
    is_python: bool
    preload: tuple[str, ...]
    own: tuple[str, ...]
    """Top-level modules that are the script's own, whatever else has their name."""
    packages: tuple[str, ...]
    """Top-level packages beside Python's own library that the script uses, as far as reading it can tell."""
    folder: str
    """What Python will put first on sys.path."""
    where: str
    """"here", "slurm" (one step over the allocation's nodes) or "meet" (each node is started by hand)."""
    job_id: str
    """Slurm's number of the job; empty outside of an allocation."""
    nodes: tuple[str, ...]
    num_nodes: int
    min_nodes: int
    """How few of them a new attempt goes on with, where some are lost."""
    ranks_per_node: int
    """0: one per device that each node turns out to have."""
    devices_per_node: int
    """0: none, or not known before the nodes answer."""
    cpus_per_rank: int
    """Hardware threads; 0: the share of the node's."""
    launch: str
    visible: str
    bind: str
    reserved_cores: tuple[int, ...]
    """Cores that the machine keeps for itself, whatever the mask allows."""
    documented_cores: tuple[tuple[int, tuple[int, ...]], ...]
    """Devices with the cores nearest to each as the machine's facts have them; empty where they are not published."""
    variables: tuple[Variable, ...]
    """The machine's settings that the user has not made by another value."""
    container: Container | None
    scale_options: ScaleOptions | None
    """None: the script runs as it is."""
    scale_why: str
    share_devices: bool
    environ: tuple[tuple[str, str], ...]
    run_directory: str
    show: frozenset[int] | None
    stdin_rank: int
    """The rank that reads this command's standard input; -1: none."""
    timeout_seconds: float
    max_restarts: int
    rendezvous: str
    node_rank: int
    step: tuple[str, ...]
    """The command that starts the agents, before the agent's own; empty where they are children."""
    slurm_signals_ranks: bool
    """Whether Slurm's signals reach the ranks without the agents' help."""
    launcher: Launcher | None
    """Whose command line was given, if any."""
    reasons: tuple[Reason, ...]
    notes: tuple[str, ...] = ()
    """What is worth a word before the start."""
    serves_horovod: bool = False
    """Whether Horovod's ranks meet at a store that the first agent runs."""

    @property
    def scale(self) -> str:
        """The way to scale the script; "off": it runs as it is."""
        return "off" if self.scale_options is None else self.scale_options.how
