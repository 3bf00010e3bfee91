"""Start the agents: one child on this machine, or one Slurm step over the nodes."""

from __future__ import annotations

import os
import resource
import selectors
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from echelon.host import Host
from echelon.launch.hangs import timeout_of
from echelon.launch.layout import Placement
from echelon.node.agent_spec import AgentSpec
from echelon.node.connect import GONE_SECONDS
from echelon.node.sweep import Life
from echelon.scheduler.slurm.step import on_one_node, step_environment
from echelon.spec import Plan

if TYPE_CHECKING:
    from echelon.host.host import Process


def can_start_again(plan: Plan) -> bool:
    """Say whether echelon itself starts the agents of a plan, one on each node, so that it can do so again."""
    is_own_step = plan.where == "slurm" and not (plan.launcher is not None and plan.launcher.is_step)
    return plan.launch != "tasks" and (plan.where == "here" or is_own_step)


def command(plan: Plan, archive: str) -> tuple[str, ...]:
    """Return the command line that starts all agents of a plan; -I and -S keep the user's site packages out."""
    inside = plan.container.prefix if plan.container is not None else ()
    agent = (*inside, plan.python, "-I", "-S", archive, "agent", plan.run_directory)
    if plan.step:
        return (*plan.step, *agent)
    return (*agent, str(max(plan.node_rank, 0)))  # where nodes meet, the hosting node is number 0


def command_for(act: str, plan: Plan, archive: str, placement: Placement, life: Life) -> tuple[str, ...]:
    """Return the command line that starts one lost agent again ("agent"), or ends what it left ("clear")."""
    inside = plan.container.prefix if plan.container is not None else ()
    agent = (*inside, plan.python, "-I", "-S", archive, act, plan.run_directory)
    step = on_one_node(plan.step, placement.node) if plan.step else ()
    return (*step, *agent, str(placement.agent_index), str(life.number), str(life.predecessor))


class Agents:
    """The process that lives as long as its agents: an agent itself, or srun."""

    def __init__(self, process: Process, on_end: Callable[[int, str], None], on_said: Callable[[str], None]) -> None:
        self._process = process
        self._on_said = on_said
        self._on_end = on_end
        self._selector: selectors.BaseSelector | None = None
        self._said = bytearray()

    @classmethod
    def start(
        cls,
        plan: Plan,
        archive: str,
        host: Host,
        *,
        words: tuple[str, ...] = (),
        on_end: Callable[[int, str], None],
        on_said: Callable[[str], None],
    ) -> Agents:
        """Start the agents, or a lost one with `words`; raise ToolMissing without the program that starts them."""
        is_srun = plan.where == "slurm" and not (plan.launcher is not None and plan.launcher.is_step)
        environ = step_environment(host.environ) if is_srun else dict(host.environ)
        return cls(host.start(words or command(plan, archive), environ=environ), on_end, on_said)

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def said(self) -> str:
        """The output of the process: agents write only when they fail, srun reports its errors here."""
        return bytes(self._said).decode("utf-8", "replace")

    def watch(self, selector: selectors.BaseSelector) -> None:
        """Read the output of the process, and notice its end."""
        stream = self._process.stdout
        if stream is not None:
            os.set_blocking(stream.fileno(), False)
            selector.register(stream, selectors.EVENT_READ, self._hear)
            self._selector = selector

    def _hear(self) -> None:
        stream = self._process.stdout
        if stream is None:
            return
        data = stream.read()
        if data is None:
            return
        self._said += data
        del self._said[: -(1 << 16)]
        if not data:
            if self._selector is not None:
                self._selector.unregister(stream)
                self._selector = None
            self._on_end(self._process.wait(), self.said)
        else:
            self._on_said(self.said)

    def end(self, *, seconds: float, waits_first: bool) -> None:
        """End the process; with `waits_first`, give agents that were asked to leave some time to do so."""
        for number in (0, signal.SIGTERM, signal.SIGKILL) if waits_first else (signal.SIGTERM, signal.SIGKILL):
            if number:
                self._process.send_signal(number)
            deadline = time.monotonic() + seconds
            while time.monotonic() < deadline:
                if self._process.poll() is not None:
                    if self._process.stdout is not None:
                        self._said += self._process.stdout.read() or b""
                        self._process.stdout.close()
                    return
                time.sleep(0.005)


class AllAgents:
    """The first process of the agents, and one more for each that was started again; `note` gets their numbers."""

    def __init__(
        self,
        plan: Plan,
        archive: str,
        host: Host,
        first: Agents,
        selector: selectors.BaseSelector,
        note: Callable[[int], None],
    ) -> None:
        self._note = note
        note(first.pid)
        self._plan = plan
        self._archive = archive
        self._host = host
        self._selector = selector
        self._all = [first]
        first.watch(selector)
        self._limits = resource.getrlimit(resource.RLIMIT_NOFILE)  # the user's, which agents and ranks get

    def start_again(self, placement: Placement, life: Life, on_end: Callable[[], None]) -> None:
        """Start a lost agent again; `on_end` is called when its process has ended."""
        self._start("agent", placement, life, on_end)

    def clear(self, placement: Placement, life: Life) -> None:
        """End a frozen agent and its ranks, on their node."""
        self._start("clear", placement, life, lambda: None)

    def _start(self, act: str, placement: Placement, life: Life, on_end: Callable[[], None]) -> None:
        ours = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (self._limits[0], ours[1]))
        try:
            again = Agents.start(
                self._plan,
                self._archive,
                self._host,
                words=command_for(act, self._plan, self._archive, placement, life),
                on_end=lambda _code, _said: on_end(),
                on_said=lambda _said: None,
            )
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, ours)
        self._note(again.pid)
        again.watch(self._selector)
        self._all.append(again)

    @property
    def said(self) -> str:
        """The output of all processes."""
        return "".join(agents.said for agents in self._all)

    def end(self, *, seconds: float, waits_first: bool) -> None:
        """End all processes, as Agents.end() does."""
        for agents in self._all:
            agents.end(seconds=seconds, waits_first=waits_first)


CONNECT_SECONDS = 60.0
MEET_SECONDS = 600.0  # people start these nodes by hand; torchrun waits as long


def spec(
    plan: Plan,
    addresses: Sequence[tuple[str, int]],
    secret: bytes,
    *,
    is_private: bool = False,
    looks: Mapping[str, Any] | None = None,
    first_life: int = 0,
) -> AgentSpec:
    """Return the part of a plan that agents read before they connect."""
    return AgentSpec(
        run_id=plan.run_id,
        addresses=list(addresses),
        argv=list(plan.argv),
        is_python=plan.is_python,
        preload=list(plan.preload),
        own=list(plan.own),
        folder=plan.folder,
        launch=plan.launch,
        visible=plan.visible,
        scale="" if plan.scale_options is None else plan.scale_options.to_json(),
        bind=plan.bind,
        reserved=list(plan.reserved_cores),
        settings=[(variable.name, variable.value, variable.is_folder) for variable in plan.variables],
        ranks_per_node=plan.ranks_per_node,
        environ=dict(plan.environ),
        max_restarts=plan.max_restarts,
        connect_seconds=MEET_SECONDS if plan.where == "meet" else CONNECT_SECONDS,
        refused_seconds=MEET_SECONDS if plan.where == "meet" else GONE_SECONDS,
        is_private_directory=is_private,
        forwards_signals=not plan.slurm_signals_ranks,
        secret=secret,
        stdin=f"/proc/{os.getpid()}/fd/0" if plan.stdin_rank >= 0 else "",
        stdin_rank=plan.stdin_rank,
        cpus_per_rank=plan.cpus_per_rank,
        rank_argument=plan.launcher.rank_argument if plan.launcher is not None else "",
        mpi=plan.launcher.mpi if plan.launcher is not None else "",
        store_address="127.0.0.1" if plan.num_nodes == 1 else "",
        hang_timeout=timeout_of(plan),
        is_step=plan.where == "slurm",
        serves_horovod=plan.serves_horovod,
        looks=dict(looks) if looks is not None else None,
        first_life=first_life,
    )
