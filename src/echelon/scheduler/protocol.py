"""What a run asks of the scheduler that gives it its nodes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from echelon.errors import RunError, UsageError
from echelon.host import Host
from echelon.spec import Job, Plan

EVERY = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class Allocation:
    """The job whose nodes this process may use."""

    job_id: str
    nodes: tuple[str, ...]
    devices: tuple[int, ...]
    """The job's devices on each node; empty: the scheduler does not tell."""
    is_task: bool
    """Whether this process is a task of a step: several tasks meet, a single task stays on its node."""
    num_tasks: int
    task_rank: int
    step_nodes: tuple[str, ...]
    partition: str = ""
    tasks_per_node: int = 0
    """The job's request, which it would start on each node by itself; 0: not stated."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunNodes:
    """The nodes of a run."""

    where: str
    """As in a plan: it names the scheduler."""
    nodes: tuple[str, ...]
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RunShape:
    """How many nodes and ranks a run has, and whether it continues without a lost node."""

    num_nodes: int
    ranks_per_node: int
    devices_per_node: int
    outlives_nodes: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentStart:
    """A command that starts agents; its process lives as long as they do."""

    name: str
    """What messages call the process."""
    words: tuple[str, ...]
    environ: Mapping[str, str]
    agent_index: int = EVERY
    """The agent whose end is the end of the process; EVERY: all of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class End:
    """The end of a process that started agents."""

    start: AgentStart
    exit_code: int
    how: str
    """"srun ended with exit code 1"."""
    said: str
    """Its last words, and those of its agents."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EndReason:
    """A scheduler's reason for the end of a job."""

    text: str
    is_node_failure: bool


class Scheduler(ABC):
    """Starts the agents of a run on the nodes of its plan, and knows why they went away."""

    is_remote: bool
    """Whether agents reach the supervisor through the network."""
    end_seconds: float
    """How long a process may take to end after its agents."""
    lost_agent = r"^echelon: agent on "
    """The words about an agent that cannot join, while the others still may."""

    @abstractmethod
    def place(self, job: Job, allocation: Allocation | None, node: str) -> RunNodes:
        """Return the nodes of a job; `node` is this machine's name."""

    def step(self, job: Job, shape: RunShape) -> tuple[str, ...]:  # noqa: ARG002
        """Return the command that starts another one on each node; empty if agents are started otherwise."""
        return ()

    def names(self, plan: Plan) -> tuple[str, ...]:  # noqa: ARG002
        """Return the nodes by the numbers of their agents; empty if agents know the names themselves."""
        return ()

    @abstractmethod
    def starts(self, plan: Plan, agent: Sequence[str], environ: Mapping[str, str]) -> tuple[AgentStart, ...]:
        """Return the commands that start one agent on each node; `agent` is its command without its number."""

    @abstractmethod
    def start_on(self, node: str, plan: Plan, command: Sequence[str], environ: Mapping[str, str]) -> AgentStart:
        """Return what starts a command on one node: a lost agent again, with its number."""

    @abstractmethod
    def cannot_start(self, plan: Plan, end: End) -> UsageError | RunError:
        """Return the error for agents that ended before they joined."""

    def files(self, environ: Mapping[str, str]) -> Mapping[str, bytes]:  # noqa: ARG002
        """Return the files of the run directory that its commands read, by name; the user alone may read them."""
        return {}

    def nodes_down(self, nodes: Sequence[str], said: str, host: Host) -> dict[str, str]:  # noqa: ARG002
        """Return those nodes that are down, each with a text; `said` is the output of all processes."""
        return {}

    def why_ended(self, said: str, host: Host) -> EndReason | None:  # noqa: ARG002
        """Return why agents or their nodes were ended from outside; None if this scheduler cannot tell."""
        return None

    def without_lost_nodes(self, plan: Plan) -> str:
        """Return how a run could have continued after the loss of a node: no scheduler gives it another one."""
        return f"--nnodes {plan.num_nodes - 1}:{plan.num_nodes} continues with the other nodes"


def not_on_every_node(plan: Plan) -> UsageError:
    return UsageError(
        f"not every node sees the run directory {plan.run_directory}",
        hint="echelon run --run-dir DIRECTORY-ON-A-SHARED-DISK …",
    )


def without_python(plan: Plan, nodes: Sequence[str]) -> UsageError:
    return UsageError(
        f"there is no {plan.python} on {', '.join(nodes)}",
        hint="install Python where every node sees it, and start echelon with that Python",
    )


def not_started(end: End, hint: str) -> RunError:
    return RunError(f"echelon could not start the agents: {end.how}", details=end.said, hint=hint)
