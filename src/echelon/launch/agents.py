"""Start the agents: one child on this machine, or one Slurm step over the nodes."""

from __future__ import annotations

import os
import selectors
import signal
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from echelon.host import Host
from echelon.spec import Plan

if TYPE_CHECKING:
    from echelon.host.host import Process


def command(plan: Plan, archive: str) -> tuple[str, ...]:
    """Return the command line that starts all agents of a plan; -I and -S keep the user's site packages out."""
    inside = plan.container.prefix if plan.container is not None else ()
    agent = (*inside, plan.python, "-I", "-S", archive, "agent", plan.run_directory)
    if plan.step:
        return (*plan.step, *agent)
    return (*agent, str(max(plan.node_rank, 0)))  # where nodes meet, the hosting node is number 0


class Agents:
    """The process that lives as long as all agents: an agent itself, or srun."""

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
        on_end: Callable[[int, str], None],
        on_said: Callable[[str], None],
    ) -> Agents:
        """Start the agents; raise ToolMissing if the program that starts them is not installed."""
        from echelon.slurm.step import step_environment

        is_srun = plan.where == "slurm" and not (plan.launcher is not None and plan.launcher.is_step)
        environ = step_environment(host.environ) if is_srun else dict(host.environ)
        return cls(host.start(command(plan, archive), environ=environ), on_end, on_said)

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
