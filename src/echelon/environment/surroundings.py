"""Find the launcher of this process, and the rank that it gave: one small class for each launcher."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import NamedTuple

from . import digits, hostlist, master, regular_files, variables
from .errors import SurroundingError
from .frameworks import RankPlace

# Greater step ids name no srun step: batch script 4294967291, salloc's shell 4294967290, extern ...92.
_FIRST_SPECIAL_STEP = 0xFFFFFFF0

# Variables that an MPI library takes for its own identity.
_MPI_IDENTITY = (
    "OMPI_COMM_WORLD_", "OMPI_MCA_orte_", "OMPI_MCA_ess", "PMIX_", "PRTE_", "PMI_", "PMI2_", "PALS_",
    "MPI_LOCALRANKID", "MPI_LOCALNRANKS", "MV2_COMM_WORLD_",
)  # fmt: skip

_OF_SHELL = frozenset({"PWD", "OLDPWD", "SHLVL", "_", "COLUMNS", "LINES", "DISPLAY", "STY", "WINDOWID", "PS1"})
_OF_SESSION = ("SLURM_", "SSH_", "TMUX", "TERM", "XDG_SESSION")


def is_of_shell_or_step(name: str) -> bool:
    """Say whether a variable belongs to a person's session or to a launcher's step, and not to the software."""
    return name in _OF_SHELL or name.startswith((*_MPI_IDENTITY, *_OF_SESSION))


class Started(NamedTuple):
    """The facts that every launcher states about a process that it started."""

    rank: int
    world_size: int
    local_rank: int
    local_world_size: int


class Surrounding:
    """One kind of launcher: whether it started this process, and with which rank."""

    name = ""

    def present(self, environ: Mapping[str, str]) -> bool:
        """Say whether this launcher started the process."""
        raise NotImplementedError

    def started(self, environ: Mapping[str, str]) -> Started:
        """Return the launcher's statements about the process."""
        raise NotImplementedError

    def place(self, environ: Mapping[str, str]) -> RankPlace:
        """Return the place of the process; raise SurroundingError if variables are missing."""
        raise NotImplementedError

    def run_id(self, environ: Mapping[str, str]) -> str:
        """Return a name of the run that is equal in all its ranks."""
        raise NotImplementedError


class Inherited(Surrounding):
    """RANK and WORLD_SIZE as torchrun, DeepSpeed, Accelerate or echelon itself set them."""

    name = "the environment"

    def present(self, environ: Mapping[str, str]) -> bool:
        """Say whether RANK and WORLD_SIZE describe this process, and not one of an older world."""
        if not ("RANK" in environ and "WORLD_SIZE" in environ):
            return False
        task = next((launcher for launcher in _STARTERS if launcher.present(environ)), None)
        return task is None or self._speaks_of(environ, task.started(environ))

    def _speaks_of(self, environ: Mapping[str, str], task: Started) -> bool:
        """Say whether RANK and WORLD_SIZE were set for this task and not for the batch script."""
        # A batch script's `export RANK=0 WORLD_SIZE=1` reaches every task and must not win here.
        if any(name not in environ for name in ("LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")):
            return False
        rank, world_size = variables.number(environ, "RANK"), variables.number(environ, "WORLD_SIZE")
        if (rank, world_size) == (task.rank, task.world_size):
            return True
        # Slurm started one task per node, and a second launcher made several ranks of it.
        return task.local_world_size == 1 and (
            world_size > task.world_size or (world_size == task.world_size and "TORCHELASTIC_RUN_ID" in environ)
        )

    def started(self, environ: Mapping[str, str]) -> Started:
        """Return the variables of torchrun or DeepSpeed; assume a single node only where that is certain."""
        rank, world_size = variables.number(environ, "RANK"), variables.number(environ, "WORLD_SIZE")
        if world_size == 1:
            return Started(rank, 1, 0, 1)
        if "LOCAL_RANK" not in environ:
            raise SurroundingError(
                f"RANK={rank} and WORLD_SIZE={world_size} are set, but LOCAL_RANK is not",
                "export LOCAL_RANK and LOCAL_WORLD_SIZE as well, or: unset RANK WORLD_SIZE",
            )
        local_world_size = variables.optional(environ, "LOCAL_WORLD_SIZE", "LOCAL_SIZE")
        if local_world_size is None:
            if environ.get("MASTER_ADDR", "localhost") not in ("localhost", "127.0.0.1", "::1"):
                raise SurroundingError(
                    f"RANK={rank} of WORLD_SIZE={world_size} is set, but LOCAL_WORLD_SIZE is not",
                    "export LOCAL_WORLD_SIZE=<ranks on this node>, or: unset RANK WORLD_SIZE",
                )
            local_world_size = world_size
        return Started(rank, world_size, variables.number(environ, "LOCAL_RANK"), local_world_size)

    def place(self, environ: Mapping[str, str]) -> RankPlace:
        started = self.started(environ)
        node_rank = variables.optional(environ, "GROUP_RANK", "NODE_RANK", "CROSS_RANK")
        num_nodes = variables.optional(environ, "GROUP_WORLD_SIZE", "CROSS_SIZE")
        if node_rank is None or num_nodes is None:
            node_rank, num_nodes = _filled(started, self.name)
        address = environ.get("MASTER_ADDR") or (master.ONE_NODE if num_nodes == 1 else "")
        if not address:
            raise _no_address(self.name, num_nodes)
        # 29500: the default of Accelerate, DeepSpeed and torchrun's static rendezvous without MASTER_PORT.
        port = master.port(environ, 0) if environ.get("MASTER_PORT") else 29500
        return RankPlace(*started, node_rank, num_nodes, address, port)

    def run_id(self, environ: Mapping[str, str]) -> str:
        return environ.get("TORCHELASTIC_RUN_ID", "none")


class OpenMpi(Surrounding):
    """mpirun of Open MPI: 4 and older (ORTE), 5 and newer (PRRTE)."""

    name = "Open MPI"

    def present(self, environ: Mapping[str, str]) -> bool:
        """Say whether mpirun set the world of this process; srun leaves that to MPI_Init."""
        return "OMPI_COMM_WORLD_RANK" in environ and "OMPI_COMM_WORLD_SIZE" in environ

    def started(self, environ: Mapping[str, str]) -> Started:
        names = ("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE")
        return Started(*(variables.number(environ, f"OMPI_COMM_WORLD_{name}") for name in names))

    def place(self, environ: Mapping[str, str]) -> RankPlace:
        """Return the place; rank 0 is assumed on the node where mpirun runs."""
        started = self.started(environ)
        node_rank, num_nodes = _filled(started, self.name)
        address = _address(environ, self.name, started, num_nodes, self._launcher_host(environ))
        port = master.port(environ, master.number_of(self.run_id(environ)))
        return RankPlace(*started, node_rank, num_nodes, address, port)

    def run_id(self, environ: Mapping[str, str]) -> str:
        return environ.get("PMIX_NAMESPACE") or environ.get("OMPI_MCA_orte_ess_jobid") or "mpirun"

    def _launcher_host(self, environ: Mapping[str, str]) -> str:
        # 1531576320.0;tcp://10.96.0.1,10.148.0.1:34911   or   1314521088.0;tcp6://[fe80::b9b,2620::2]:43370
        for contact in environ.get("OMPI_MCA_orte_hnp_uri", "").split(";")[1:]:
            scheme, _, where = contact.partition("://")
            if scheme in ("tcp", "tcp6"):
                return where.rpartition(":")[0].strip("[]").split(",")[0]
        # prterun-node18-12345@1
        words = environ.get("PMIX_NAMESPACE", "").partition("@")[0].split("-")
        return "-".join(words[1:-1]) if words[0] == "prterun" and len(words) > 2 else ""


class Mpich(Surrounding):
    """mpiexec of MPICH, Intel MPI and MVAPICH (Hydra)."""

    name = "mpiexec"

    def present(self, environ: Mapping[str, str]) -> bool:
        """Say whether Hydra started the process: Slurm's own PMI never sets MPI_LOCALRANKID."""
        return "PMI_RANK" in environ and "PMI_SIZE" in environ and "MPI_LOCALRANKID" in environ

    def started(self, environ: Mapping[str, str]) -> Started:
        rank, world_size = variables.number(environ, "PMI_RANK"), variables.number(environ, "PMI_SIZE")
        if world_size == 1:
            return Started(rank, 1, 0, 1)
        local_rank = variables.optional(
            environ, "MPI_LOCALRANKID", "PMI_LOCAL_RANK", "PALS_LOCAL_RANKID", "MV2_COMM_WORLD_LOCAL_RANK"
        )
        local_world_size = variables.optional(
            environ, "MPI_LOCALNRANKS", "PMI_LOCAL_SIZE", "PALS_LOCAL_SIZE", "MV2_COMM_WORLD_LOCAL_SIZE"
        )
        if local_rank is None or local_world_size is None:
            raise SurroundingError(
                f"PMI_RANK={rank} of PMI_SIZE={world_size} is set, but no local rank and size",
                "export MPI_LOCALRANKID=<rank on its node> MPI_LOCALNRANKS=<ranks on the node> in each rank",
            )
        return Started(rank, world_size, local_rank, local_world_size)

    def place(self, environ: Mapping[str, str]) -> RankPlace:
        """Return the place; rank 0 is assumed on the first node of a Slurm allocation."""
        started = self.started(environ)
        node_rank, num_nodes = _filled(started, self.name)
        nodelist = environ.get("SLURM_JOB_NODELIST", "")
        candidate = hostlist.first(nodelist) if nodelist else ""
        address = _address(environ, self.name, started, num_nodes, candidate)
        port = master.port(environ, master.number_of(self.run_id(environ)))
        return RankPlace(*started, node_rank, num_nodes, address, port)

    def run_id(self, environ: Mapping[str, str]) -> str:
        """Return the job's name, or the user's number if mpiexec gives no name."""
        for name in ("PALS_APID", "PMI_JOBID", "SLURM_JOB_ID"):
            if environ.get(name):
                return environ[name]
        return f"mpiexec-{os.getuid()}"


class Pmi(Mpich):
    """Any other launcher that speaks PMI: Cray PALS, or an unknown server."""

    name = "PMI"

    def present(self, environ: Mapping[str, str]) -> bool:
        """Say whether any PMI server is there."""
        return "PMI_RANK" in environ and "PMI_SIZE" in environ


class SlurmStep(Surrounding):
    """A task of srun; batch scripts have a SLURM_PROCID too, but no numbered step."""

    name = "Slurm"

    def present(self, environ: Mapping[str, str]) -> bool:
        step = _step(environ)
        return "SLURM_PROCID" in environ and digits.whole(step, _FIRST_SPECIAL_STEP) < _FIRST_SPECIAL_STEP

    def started(self, environ: Mapping[str, str]) -> Started:
        """Return the numbers of the task, checked against the step's list of counts."""
        rank = variables.number(environ, "SLURM_PROCID")
        local_rank = variables.number(environ, "SLURM_LOCALID")
        world_size = variables.number(environ, "SLURM_STEP_NUM_TASKS", "SLURM_NTASKS", "SLURM_NPROCS")
        name = variables.present(environ, "SLURM_STEP_TASKS_PER_NODE", "SLURM_TASKS_PER_NODE")
        counts = hostlist.expand_counts(environ[name])
        node_rank = variables.number(environ, "SLURM_NODEID")
        if sum(counts) != world_size or node_rank >= len(counts) or local_rank >= counts[node_rank]:
            raise SurroundingError(
                f"Slurm's variables disagree: {name}={environ[name]} sums up to {sum(counts)} tasks on "
                f"{len(counts)} nodes, but this is task {rank} of {world_size}, "
                f"local task {local_rank} on node {node_rank}",
                "start the ranks with one srun, and without --export options that set SLURM_ variables",
            )
        return Started(rank, world_size, local_rank, counts[node_rank])

    def place(self, environ: Mapping[str, str]) -> RankPlace:
        """Return the task's place; rank 0 runs on the first node of the step."""
        started = self.started(environ)
        node_rank = variables.number(environ, "SLURM_NODEID")
        num_nodes = variables.number(environ, "SLURM_STEP_NUM_NODES", "SLURM_NNODES", "SLURM_JOB_NUM_NODES")
        address = environ.get("MASTER_ADDR") or (master.ONE_NODE if num_nodes == 1 else "")
        if not address:
            address = self._first_node(environ)
            if started.rank == 0 and node_rank != 0 and not _is_arbitrary(environ):
                raise SurroundingError(
                    f"rank 0 runs on node {node_rank} of the step ({environ.get('SLURMD_NODENAME', '?')}), "
                    f"but the other ranks look for it on node 0 ({address})",
                    "in the batch script: export MASTER_ADDR=<the node of task 0>",
                )
        job = variables.number(environ, "SLURM_JOB_ID", "SLURM_JOBID")
        port = master.port(environ, job, digits.whole(_step(environ)))
        return RankPlace(*started, node_rank, num_nodes, address, port)

    def run_id(self, environ: Mapping[str, str]) -> str:
        return f"{environ[variables.present(environ, 'SLURM_JOB_ID', 'SLURM_JOBID')]}.{_step(environ)}"

    def _first_node(self, environ: Mapping[str, str]) -> str:
        if not _is_arbitrary(environ):
            names = ("SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST", "SLURM_NODELIST")
            return hostlist.first(environ[variables.present(environ, *names)])
        # With --distribution=arbitrary Slurm sorts the node list; only the user's own order begins with task 0.
        if environ.get("SLURM_ARBITRARY_NODELIST"):
            return hostlist.first(environ["SLURM_ARBITRARY_NODELIST"])
        path = environ.get("SLURM_HOSTFILE", "")
        try:
            return hostlist.first(regular_files.read_text(path).partition("\n")[0].partition("*")[0])
        except (OSError, ValueError) as error:
            raise SurroundingError(
                f"with --distribution=arbitrary the node of rank 0 stands first in SLURM_HOSTFILE={path!r}, "
                f"which cannot be read here ({error})",
                "in the batch script: export MASTER_ADDR=<first line of the host file>",
            ) from error


class Alone(Surrounding):
    """A process without a launcher: it is the only rank."""

    name = "nobody"

    def present(self, _environ: Mapping[str, str]) -> bool:
        """Return True: this class is the last resort."""
        return True

    def started(self, _environ: Mapping[str, str]) -> Started:
        return Started(0, 1, 0, 1)

    def place(self, environ: Mapping[str, str]) -> RankPlace:
        """Return the only place, with a port that differs from that of a second such process."""
        address = environ.get("MASTER_ADDR") or master.ONE_NODE
        return RankPlace(0, 1, 0, 1, 0, 1, address, master.port(environ, os.getpid()))

    def run_id(self, _environ: Mapping[str, str]) -> str:
        """Return torchrun's word for a run without a name."""
        return "none"


# mpirun and mpiexec come before Slurm: inside of an allocation their daemons are Slurm's tasks, and the
# ranks inherit the SLURM_PROCID of their daemon. Slurm comes before PMI: srun sets PMI_RANK as well, but
# only Slurm knows the nodes.
_STARTERS: tuple[Surrounding, ...] = (OpenMpi(), Mpich(), SlurmStep(), Pmi())

# Explicit rank variables win; a process without a launcher comes last.
ORDER: tuple[Surrounding, ...] = (Inherited(), *_STARTERS, Alone())


def find(environ: Mapping[str, str]) -> Surrounding:
    """Return the first launcher that recognises its own variables in the environment."""
    return next(surrounding for surrounding in ORDER if surrounding.present(environ))


def filled_by_mpi(environ: Mapping[str, str]) -> tuple[Started, int]:
    """Return the facts that mpirun or mpiexec states about this process, and its node's number."""
    launcher = next((each for each in (OpenMpi(), Mpich(), Pmi()) if each.present(environ)), None)
    if launcher is None:
        raise SurroundingError(
            "mpirun has started this process without telling its rank",
            "check that mpirun is of Open MPI, MPICH or Intel MPI: mpirun --version",
        )
    started = launcher.started(environ)
    return started, _filled(started, launcher.name)[0]


def mpi_identity(environ: Mapping[str, str]) -> list[str]:
    """Return the variables that would make a rank take its agent's place in an MPI world."""
    return [name for name in environ if name.startswith(_MPI_IDENTITY)]


def _step(environ: Mapping[str, str]) -> str:
    return environ.get("SLURM_STEP_ID") or environ.get("SLURM_STEPID") or ""


def _is_arbitrary(environ: Mapping[str, str]) -> bool:
    return environ.get("SLURM_DISTRIBUTION", "").startswith("arbitrary")


def _filled(started: Started, launcher: str) -> tuple[int, int]:
    """Return node rank and number of nodes for launchers that fill one node after the other without telling."""
    rank, world_size, local_rank, local_world_size = started
    if local_world_size == world_size:
        return 0, 1
    if local_world_size == 0 or world_size % local_world_size or rank % local_world_size != local_rank:
        raise SurroundingError(
            f"{launcher} does not tell the node of a rank, and rank {rank} of {world_size} cannot be local "
            f"rank {local_rank} of {local_world_size} if it fills one node after the other",
            "mpirun --map-by ppr:<ranks per node>:node --rank-by slot …, or mpiexec -ppn <ranks per node> …",
        )
    return rank // local_world_size, world_size // local_world_size


def _address(environ: Mapping[str, str], launcher: str, started: Started, num_nodes: int, candidate: str) -> str:
    """Return the user's address or the candidate; raise on rank 0 if the candidate is not its own node."""
    if environ.get("MASTER_ADDR"):
        return environ["MASTER_ADDR"]
    if num_nodes == 1:
        return master.ONE_NODE
    if not candidate:
        raise _no_address(launcher, num_nodes)
    if started.rank == 0 and not master.is_here(candidate):
        raise SurroundingError(
            f"rank 0 runs on {os.uname().nodename}, but the other ranks look for it on {candidate}",
            f"export MASTER_ADDR={os.uname().nodename}, and pass it on: mpirun -x MASTER_ADDR …",
        )
    return candidate


def _no_address(launcher: str, num_nodes: int) -> SurroundingError:
    return SurroundingError(
        f"MASTER_ADDR is not set, and {launcher} does not say which of the {num_nodes} nodes rank 0 runs on",
        "export MASTER_ADDR=<host name of the first node>, and pass it on (mpirun -x MASTER_ADDR)",
    )
