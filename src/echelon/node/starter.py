"""Start every rank of this node with its environment, by fork from the warm process or by exec."""

import os
from typing import Any, Callable, Dict, List, Mapping, Optional, Tuple

from ..environment import devices, frameworks, surroundings, threads
from ..environment.agent_place import job_id
from ..environment.frameworks import RankPlace
from . import memory_folder, order, pool_place, private, pulse, secret, sweep, warm_process
from .agent_spec import AgentSpec, Placement
from .binding import Binding
from .output import RankOutput
from .pulse_page import PulsePage
from .ranks import Rank
from .stores import attempt_key
from .warm_process import READY, STARTING, UNUSABLE, CannotStart, WarmProcess, merged, open_input, spawn

Variables = Dict[str, Optional[str]]
OPENMP_BINDERS = ("OMP_PROC_BIND", "OMP_PLACES", "GOMP_CPU_AFFINITY", "KMP_AFFINITY")


class Starter:
    """Start ranks on this node; `why_exec` says why not by fork."""

    def __init__(
        self, spec: AgentSpec, placement: Placement, binding: Binding, environ: Dict[str, str], archive: str
    ) -> None:
        self.spec = spec
        self.placement = placement
        self.binding = binding
        self.environ = environ
        self.archive = archive
        self._adopts = False
        self.warm: Optional[WarmProcess] = None
        self.why_exec = "" if spec.launch == "warm" else "asked for"
        self.why_no_pool = ""
        self._entrance = -1  # the descriptor that gives ranks the key of the attempt

    def warm_up(self, stdout: int, stderr: int) -> None:
        """Start importing at once, while other agents are still connecting."""
        if self.spec.launch != "warm":
            return
        self.why_exec = warm_process.reason_against(self.spec.argv, self.archive) or self._why_threads_would_stray()
        if self.why_exec:
            return
        try:
            self._ask_pool(stdout, stderr)
            if self.warm is not None:
                return
            self.warm = WarmProcess(self.spec.argv, self.environ, self.archive, stdout, stderr)
        except CannotStart as error:
            self.why_exec = str(error)  # starting the ranks will fail for the same reason, and that is reported
            return
        self.warm.prepare(self.spec.preload, self.spec.folder, self.spec.own, self.placement.num_ranks)

    def _ask_pool(self, stdout: int, stderr: int) -> None:
        """Take a fork of what the pool of this node has imported, if there is a pool that has the same imports."""
        folder = pool_place.folder(self.environ)
        if not self.spec.uses_pool or not os.path.isdir(folder):
            return
        request = {
            "argv": self.spec.argv,
            "environ": self.environ,
            "preload": self.spec.preload,
            "folder": self.spec.folder,
            "own": self.spec.own,
            "num_ranks": self.placement.num_ranks,
            "digest": pool_place.digest(self.archive),
        }
        self.warm, self.why_no_pool = WarmProcess.of_pool(request, folder, stdout, stderr)

    def _why_threads_would_stray(self) -> str:
        """Return why OpenMP threads would leave their cores: their mask is read in `import torch`, before binding."""
        name = next((name for name in OPENMP_BINDERS if self.environ.get(name)), "")
        return "%s is set, and threads must be bound after their rank" % name if name and self.binds else ""

    @property
    def binds(self) -> bool:
        return not self.binding.why_not

    @property
    def is_waiting(self) -> bool:
        """Say whether imports are still running, so that ranks cannot be started yet."""
        return self.warm is not None and self.warm.state == STARTING

    def begin(self, message: Dict[str, Any]) -> None:
        """Prepare the key that all ranks of the attempt inherit."""
        self._forget_entrance()
        if message["store_port"]:
            key = attempt_key(self.spec.secret, message)
            self._entrance = secret.write(secret.Entrance(key, message["master_addr"], message["store_port"]))

    def _forget_entrance(self) -> None:
        if self._entrance >= 0:
            os.close(self._entrance)
            self._entrance = -1

    def start(self, rank: Rank, variables: Variables) -> None:
        """Start one rank; raise CannotStart. After a fork, its process id comes later, in a message."""
        stdout, stderr = rank.output.open_pipes()
        stdin = open_input(self.spec.stdin if rank.rank == self.spec.stdin_rank else "")
        cpus = self.binding.cpus(rank.local_rank)
        ours = os.sched_getaffinity(0)
        try:
            if self.warm is not None and self.warm.state == READY:
                rank.was_forked = True
                inherited = self._inherited(rank, has_hook=True)
                files = [stdin, stdout, stderr, *inherited]
                has_pulse = rank.pulse is not None
                self.warm.fork(rank.local_rank, variables, cpus, files, self._argument(variables), has_pulse)
            else:
                if not self._adopts:
                    sweep.adopt_orphans()
                    self._adopts = True
                threads.apply(cpus)  # the program inherits the binding
                argv = with_argument(self.spec, self._argument(variables))
                environ = self._exec_environment(variables)
                inherited = self._inherited(rank, has_hook="ECHELON_LIVE" in environ)
                rank.pid = _spawn(argv, {**environ, **self._named(rank)}, (stdin, stdout, stderr), inherited)
        finally:
            if cpus and not rank.was_forked:
                os.sched_setaffinity(0, ours)
            for descriptor in (stdin, stdout, stderr):
                os.close(descriptor)

    def _inherited(self, rank: Rank, *, has_hook: bool) -> List[int]:
        """Return the files that a rank inherits: the key of the attempt, and its pulse if the start hook runs in it."""
        if has_hook:
            rank.pulse = PulsePage()
        entrance = [self._entrance] if self._entrance >= 0 else []
        return entrance + ([rank.pulse.descriptor] if rank.pulse is not None else [])

    def _named(self, rank: Rank) -> Dict[str, str]:
        entrance = secret.variable(self._entrance) if self._entrance >= 0 else {}
        return {**entrance, **(pulse.variable(rank.pulse.descriptor) if rank.pulse is not None else {})}

    def _argument(self, variables: Variables) -> str:
        """Return the extra first argument of a rank, as DeepSpeed's launcher passes it."""
        return self.spec.rank_argument + str(variables["LOCAL_RANK"]) if self.spec.rank_argument else ""

    def _exec_environment(self, variables: Variables) -> Dict[str, str]:
        environ = merged(self.environ, variables)
        if not self.spec.is_python:
            return environ
        reason = warm_process.reason_against(self.spec.argv, self.archive)
        if reason and self.spec.scale:
            raise CannotStart("each rank would train by itself: %s; start echelon with another Python" % reason)
        return environ if reason else warm_process.with_hook(environ, self.archive)

    def give_up_fork(self, why: str) -> None:
        """Start all further ranks by exec."""
        if self.warm is not None:
            self.warm.close()
            self.warm.state = UNUSABLE
        self.warm = None
        self.why_exec = why

    def variables(self, place: RankPlace, message: Dict[str, Any]) -> Variables:
        """Return the variables in which this rank's environment differs from the node's."""
        error_file = os.path.join(message["log_directory"], "rank-%d.error.json" % place.rank)
        result: Variables = dict(
            frameworks.rank_variables(
                place,
                run_id=message["name"],
                attempt=message["restart"],
                max_restarts=self.spec.max_restarts,
                workers=message["workers"],
                error_file=error_file,
            )
        )
        result.update(frameworks.task_variables(self.environ, place, ranks_per_node=message["ranks_per_node"]))
        if frameworks.OF_NO_RANK in self.environ:
            result[frameworks.OF_NO_RANK] = self.environ[frameworks.OF_NO_RANK]
        result["ECHELON_ATTEMPT"] = str(message["attempt"])
        result["ECHELON_RUN_ID"] = message["run_id"]
        result["ECHELON_RUN_DIR"] = message["run_directory"]
        if not self.spec.mpi:
            result.update(dict.fromkeys(surroundings.mpi_identity(self.environ)))
        if self.spec.visible == "own":
            may_share = (
                self.placement.num_devices < self.placement.local_world_size
            )  # with more devices the plan was refused
            result.update(devices.only(self.environ, place.local_rank, may_share=may_share))
        elif self.placement.num_devices == 1 < self.placement.local_world_size and self.spec.launch == "tasks":
            result.update(devices.first_device(place.local_rank))
        result.update({name: value for name, value in self.spec.environ.items() if name in result})
        if self.spec.may_use_horovod and not self.spec.mpi and place.world_size > 1:
            result.update(frameworks.NOT_BY_MPI)
        return result

    def close(self) -> None:
        self._forget_entrance()
        if self.warm is not None:
            self.warm.close()


def _spawn(argv: List[str], environ: Dict[str, str], standard: Tuple[int, int, int], inherited: List[int]) -> int:
    """Start a program that inherits more than its standard streams."""
    for descriptor in inherited:
        os.set_inheritable(descriptor, True)
    try:
        return spawn(argv, environ, *standard)
    finally:
        for descriptor in inherited:
            os.set_inheritable(descriptor, False)


def place_of(message: Dict[str, Any], placement: Placement, offset: int) -> RankPlace:
    """Return the place of this node's rank number `offset`, in the attempt that the message describes."""
    return RankPlace(
        rank=message["first_rank"] + offset,
        world_size=message["world_size"],
        local_rank=placement.first_local_rank + offset,
        local_world_size=message["local_world_size"],
        node_rank=message["node_rank"],
        num_nodes=message["num_nodes"],
        master_addr=message["master_addr"],
        master_port=message["master_port"],
    )


def with_argument(spec: AgentSpec, argument: str) -> List[str]:
    """Return the command of a rank, with one more argument before the program's own."""
    if not argument:
        return spec.argv
    first = 1 if not spec.is_python else 3 if spec.argv[1] == "-m" else 2
    return [*spec.argv[:first], argument, *spec.argv[first:]]


def new_rank(place: RankPlace, log_directory: str, forward: "Callable[[str, bytes], None] | None") -> Rank:
    """Return an unstarted rank with its log file; raise OSError if the log cannot be written."""
    os.makedirs(log_directory, mode=0o700, exist_ok=True)
    output = RankOutput(os.path.join(log_directory, "rank-%d.log" % place.rank), forward)
    return Rank(rank=place.rank, local_rank=place.local_rank, output=output)


__all__: List[str] = ["CannotStart", "Starter", "new_rank", "place_of", "with_argument"]


def surroundings_of_ranks(spec: AgentSpec, placement: Placement, mark: str, memory: str) -> Dict[str, str]:
    """Return the agent's environment with the run's and the machine's variables; the user's own values stay."""
    environ = dict(os.environ)
    environ.update(spec.environ)
    environ[sweep.MARK] = mark
    environ[order.FILE] = order.path(mark)
    environ[memory_folder.VARIABLE] = memory if environ.get(memory_folder.VARIABLE, memory) else ""  # "" asks for none
    if spec.scale:
        environ["ECHELON_SCALE"] = spec.scale
        environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")  # DDP's warnings would be about echelon's use of it
    for name, value, is_folder in spec.settings:
        if name not in environ:
            filled = _filled(value, placement, environ)
            if "$" not in filled and (not is_folder or _make(filled)):
                environ[name] = filled
    return environ


def num_threads(placement: Placement, num_cores: int, cpus_per_rank: int) -> int:
    """Return OMP_NUM_THREADS: the cores that a rank is bound to, or its share of the allowed cores."""
    share = cpus_per_rank or threads.omp_num_threads(placement.num_cores, placement.local_world_size)
    return min(share, num_cores) if num_cores else share


def _filled(value: str, placement: Placement, environ: Mapping[str, str]) -> str:
    if "{user}" in value:
        value = value.replace("{user}", environ.get("USER") or str(os.getuid()))
    value = value.replace("{job_id}", job_id(environ) or str(os.getppid()))
    return os.path.expandvars(value.replace("{node_rank}", str(max(placement.node_rank, 0))))


def _make(folder: str) -> bool:
    """Create a folder and return whether it is the user's own: code is run from some folders, and /tmp is shared."""
    try:
        os.makedirs(folder, mode=0o700, exist_ok=True)
        return not os.path.islink(folder) and private.is_own(folder)
    except OSError:
        return False
