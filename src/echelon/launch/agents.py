"""Start the agents, by the commands of the scheduler, and hear of their end."""

from __future__ import annotations

import os
import resource
import selectors
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from echelon.host import Host
from echelon.launch.layout import AgentPlacement
from echelon.node.sweep import Life
from echelon.scheduler import members
from echelon.scheduler.protocol import EVERY
from echelon.spec import Plan

if TYPE_CHECKING:
    from echelon.host.host import Process
    from echelon.node.agent_spec import AgentSpec
    from echelon.scheduler.protocol import AgentStart


OnEnd = Callable[[int, str], None]  # hears the exit code of a process and its last words
OnEndOfStart = Callable[["AgentStart", int, str], None]
OnSaid = Callable[[str], None]


def can_start_again(plan: Plan) -> bool:
    """Say whether echelon itself starts the agents of a plan, one on each node, so that it can do so again."""
    return plan.launch != "tasks" and plan.where != "meet"


def starts(plan: Plan, archive: str, environ: Mapping[str, str]) -> tuple[AgentStart, ...]:
    return members.of(plan.where).starts(plan, _command("agent", plan, archive), environ)


def _command(act: str, plan: Plan, archive: str) -> tuple[str, ...]:
    """Return the command of an agent without its number; -I and -S keep the user's site packages out."""
    inside = plan.container.prefix if plan.container is not None else ()
    return (*inside, plan.python, "-I", "-S", archive, act, plan.run_directory)


class Agents:
    """The process that lives as long as its agents: an agent itself, or a program that starts agents elsewhere."""

    def __init__(self, process: Process, on_end: OnEnd, on_said: OnSaid) -> None:
        self._process, self._on_said, self._on_end = process, on_said, on_end
        self._selector: selectors.BaseSelector | None = None
        self._said = bytearray()

    @classmethod
    def start(cls, start: AgentStart, host: Host, *, on_end: OnEnd, on_said: OnSaid) -> Agents:
        """Start the agents; raise ToolMissing without the program that starts them."""
        return cls(host.start(start.words, environ=start.environ), on_end, on_said)

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def exit_code(self) -> int:
        """That of a process that has ended."""
        return self._process.wait()

    @property
    def said(self) -> str:
        """The output of the process: agents write only when they fail, and so does what starts them."""
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

    def send(self, number: int) -> None:
        self._process.send_signal(number)

    def has_ended(self) -> bool:
        """Say whether the process has ended; then its last words are read."""
        if self._process.poll() is None:
            return False
        if self._process.stdout is not None and not self._process.stdout.closed:
            self._said += self._process.stdout.read() or b""
            self._process.stdout.close()
        return True


class AllAgents:
    """The first processes of the agents, and one more for each that was started again; `note` gets their numbers."""

    def __init__(
        self, plan: Plan, archive: str, host: Host, selector: selectors.BaseSelector, note: Callable[[int], None]
    ) -> None:
        self._note, self._plan, self._archive, self._host, self._selector = note, plan, archive, host, selector
        self._all: list[Agents] = []
        self._limits = resource.getrlimit(resource.RLIMIT_NOFILE)  # the user's, which agents and ranks get

    def start(self, on_end: OnEndOfStart, on_said: Callable[[AgentStart, str], None]) -> None:
        """Start all agents; raise ToolMissing without the program that starts them."""
        self._on_end = on_end
        for start in starts(self._plan, self._archive, self._host.environ):
            self._add(Agents.start(start, self._host, on_end=partial(on_end, start), on_said=partial(on_said, start)))

    def _add(self, agents: Agents) -> None:
        self._note(agents.pid)
        agents.watch(self._selector)
        self._all.append(agents)

    def start_again(self, placement: AgentPlacement, life: Life, on_end: Callable[[], None]) -> None:
        """Start a lost agent again; `on_end` is called when its process has ended."""

        def ended(start: AgentStart, exit_code: int, said: str) -> None:
            on_end()
            if start.agent_index != EVERY:
                self._on_end(start, exit_code, said)

        self._start("agent", placement, life, ended)

    def clear(self, placement: AgentPlacement, life: Life) -> None:
        """End a frozen agent and its ranks, on their node."""
        self._start("clear", placement, life, lambda _start, _code, _said: None)

    def _start(self, act: str, placement: AgentPlacement, life: Life, on_end: OnEndOfStart) -> None:
        numbers = map(str, (placement.agent_index, life.number, life.predecessor))
        command = (*_command(act, self._plan, self._archive), *numbers)
        start = members.of(self._plan.where).start_on(placement.node, self._plan, command, self._host.environ)
        ours = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (self._limits[0], ours[1]))
        try:
            self._add(Agents.start(start, self._host, on_end=partial(on_end, start), on_said=lambda _said: None))
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, ours)

    @property
    def said(self) -> str:
        return "".join(agents.said for agents in self._all)

    def end(self, *, seconds: float, waits_first: bool) -> None:
        """End all processes; with `waits_first`, give agents that were asked to leave some time to do so."""
        for number in (0, signal.SIGTERM, signal.SIGKILL) if waits_first else (signal.SIGTERM, signal.SIGKILL):
            for agents in self._all if number else ():
                if not agents.has_ended():
                    agents.send(number)
            deadline = time.monotonic() + seconds
            while not all(agents.has_ended() for agents in self._all):
                if time.monotonic() >= deadline:
                    break
                time.sleep(0.005)
            else:
                return


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
    from echelon.launch.hangs import timeout_of
    from echelon.node.agent_spec import AgentSpec
    from echelon.node.connect import GONE_SECONDS

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
        forwards_signals=plan.agents_forward_signals,
        secret=secret,
        stdin=f"/proc/{os.getpid()}/fd/0" if plan.stdin_rank >= 0 else "",
        stdin_rank=plan.stdin_rank,
        cpus_per_rank=plan.cpus_per_rank,
        rank_argument=plan.launcher.rank_argument if plan.launcher is not None else "",
        mpi=plan.mpi,
        store_address="127.0.0.1" if plan.num_nodes == 1 else "",
        hang_timeout=timeout_of(plan),
        is_step=plan.has_allocation,
        uses_pool=plan.uses_pool,
        may_use_horovod=plan.may_use_horovod,
        looks=dict(looks) if looks is not None else None,
        staged=[item.folder for item in plan.staged],
        first_life=first_life,
    )
