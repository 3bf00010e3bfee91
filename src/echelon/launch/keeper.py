"""Keep the supervisor of a run: pass signals on to it; if it is killed, start another one, or report its end.

The process that a user starts is the keeper, and the supervisor is its child. Only the supervisor grows with the run,
so the kernel ends it first when memory runs out. A signal to a process group or to a job reaches both, and counts once:
see `Signals`.
"""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import sys
import time
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NoReturn

from echelon.checkpoint_order import folder
from echelon.launch import failure
from echelon.launch.agents import can_start_again
from echelon.launch.console import duration
from echelon.launch.failure import Failure
from echelon.launch.restarts import Restarts
from echelon.launch.run_directory import RunDirectory
from echelon.launch.runs import short_name
from echelon.launch.signals import CAUGHT
from echelon.node import memory, private, process_state
from echelon.node.halt_watch import STOPPED_SECONDS, HaltWatch
from echelon.spec import Plan

EXIT_CODE = 128 + signal.SIGKILL
LOOK_SECONDS = 1.0
END_SECONDS = 20.0  # for agents to end the ranks of a lost supervisor, and for srun to end its step
_STOPS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_BYE = "bye"


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """The supervisor's end of the link to its keeper, and what the supervisors before it did."""

    link: socket.socket
    """Signals come here, one byte each."""
    began: float
    """When the run began, by the monotonic clock."""
    num_attempts: int
    num_restarts: int
    is_successor: bool

    def note_agents(self, pid: int) -> None:
        """Tell of a process that starts agents: an agent itself, or srun."""
        self._tell(str(pid))

    def dismiss(self) -> None:
        """Tell that the run is over, and reported."""
        self._tell(_BYE)

    def _tell(self, word: str) -> None:
        with suppress(OSError):  # the keeper was killed; the supervisor's loop learns of it
            self.link.sendall(word.encode() + b"\n")


def keep(plan: Plan, directory: RunDirectory, listener: socket.socket) -> Kept:
    """Fork the supervisor, and return in its process; the process that was there before keeps it, and never returns.

    The keeper closes the listener, so that agents learn of the end of the supervisor; the next one opens its own.
    """
    keeper = _Keeper(plan, directory)
    while True:
        forked = keeper.fork()
        if isinstance(forked, Kept):
            return forked
        listener.close()
        keeper.stand_by(forked)
        keeper.follow(forked)


@dataclass(slots=True)
class _Supervisor:
    """The supervisor of now, as its keeper knows it."""

    pid: int
    link: socket.socket
    began: float = field(default_factory=time.monotonic)
    heard: bytes = b""
    was_halted: bool = False
    status: int = 0
    """Its exit code, or the negative number of the signal that ended it."""

    def hear(self) -> None:
        """Read what the supervisor has told."""
        with suppress(BlockingIOError):
            self.heard += self.link.recv(4096)

    @property
    def words(self) -> list[str]:
        return self.heard.decode().split()

    @property
    def is_done(self) -> bool:
        return _BYE in self.words

    @property
    def agents(self) -> list[int]:
        return [int(word) for word in self.words if word != _BYE]


class _Keeper:
    def __init__(self, plan: Plan, directory: RunDirectory) -> None:
        self._plan = plan
        self._directory = directory
        self._began = time.monotonic()
        self._kills = memory.oom_kills()
        self._restarts = Restarts(
            plan.max_restarts if can_start_again(plan) else 0, partial(directory.newest_step, folder(plan.environ))
        )
        self._pipe = os.pipe()
        for end in self._pipe:
            os.set_blocking(end, False)
        self._old: dict[int, Any] = {}
        self._old_wakeup = -1
        self._owed: list[int] = []
        """Signals that came while there was no supervisor."""
        self._is_first = True

    def fork(self) -> Kept | _Supervisor:
        """Fork a supervisor; return its end of the link in its process, and the keeper's end in the keeper's."""
        num_attempts, num_restarts, _ = _past(self._directory)
        sys.stdout.flush()
        sys.stderr.flush()
        ours, theirs = socket.socketpair()
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, (*CAUGHT, signal.SIGCHLD))
        pid = os.fork()
        if pid == 0:
            ours.close()
            self._give_signals_back()
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
            self._directory.event("supervisor", pid=os.getpid(), node=socket.gethostname())
            return Kept(
                link=theirs,
                began=self._began,
                num_attempts=num_attempts,
                num_restarts=num_restarts,
                is_successor=not self._is_first,
            )
        theirs.close()
        ours.setblocking(False)
        if self._is_first:
            self._catch_signals()
        self._is_first = False
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        self._restarts.note_start()
        return _Supervisor(pid, ours)

    def stand_by(self, supervisor: _Supervisor) -> None:
        """Pass signals on until the supervisor has ended."""
        watch = HaltWatch()
        while True:
            self._pass_on(supervisor)
            supervisor.hear()
            ended, status = os.waitpid(supervisor.pid, os.WNOHANG)
            if ended:
                supervisor.hear()
                supervisor.status = os.waitstatus_to_exitcode(status)
                return
            if self._plan.max_restarts and watch.is_frozen(supervisor.pid):
                supervisor.was_halted = True
                os.kill(supervisor.pid, signal.SIGKILL)
            self._wait(LOOK_SECONDS)

    def follow(self, supervisor: _Supervisor) -> None:
        """Return if another supervisor is to follow the one that has ended; otherwise end this process like it."""
        if supervisor.status >= 0:
            os._exit(supervisor.status)
        if supervisor.is_done:
            signal.signal(-supervisor.status, signal.SIG_DFL)
            os.kill(os.getpid(), -supervisor.status)
            os._exit(128 - supervisor.status)
        reason = self._reason(supervisor)
        self._end_agents(supervisor)
        if not self._restarts.take(reason, lasted_seconds=time.monotonic() - supervisor.began):
            self._end(reason)
        seconds = self._restarts.wait_seconds
        later = f" in {seconds:g} s" if seconds else ""
        self._say(f"echelon: {reason.cause}: {reason.detail}; another one starts all ranks again{later}\n")
        self._directory.event("restart", cause=reason.cause, rank=-1, nodes=self._plan.num_nodes)
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline and not set(self._owed) & set(_STOPS):
            self._wait(deadline - time.monotonic())
            self._owed += self._signals()

    # Signals

    def _catch_signals(self) -> None:
        self._old_wakeup = signal.set_wakeup_fd(self._pipe[1], warn_on_full_buffer=False)
        for number in (*CAUGHT, signal.SIGCHLD):
            if number == signal.SIGHUP and signal.getsignal(number) == signal.SIG_IGN:
                continue  # nohup had set this handler
            self._old[number] = signal.signal(number, lambda _number, _frame: None)

    def _give_signals_back(self) -> None:
        for number, handler in self._old.items():
            signal.signal(number, handler)
        if self._old:
            signal.set_wakeup_fd(self._old_wakeup)
        for end in self._pipe:
            os.close(end)

    def _signals(self) -> list[int]:
        try:
            numbers = os.read(self._pipe[0], 4096)
        except BlockingIOError:
            return []
        return [number for number in numbers if number in self._old and number != signal.SIGCHLD]

    def _pass_on(self, supervisor: _Supervisor) -> None:
        numbers, self._owed = [*self._owed, *self._signals()], []
        for number in numbers:
            if not supervisor.is_done:
                with suppress(OSError):  # it has just been killed
                    supervisor.link.send(bytes((number,)))
            elif number in _STOPS:  # it listens to its keeper no more, and warnings come too late
                os.kill(supervisor.pid, number)

    def _wait(self, seconds: float) -> None:
        select.select([self._pipe[0]], [], [], max(0.0, seconds))

    # The end of a supervisor

    def _reason(self, supervisor: _Supervisor) -> Failure:
        """Return why a supervisor is gone."""
        kills, node = memory.oom_kills(), socket.gethostname()
        why = ", when memory ran out" if kills > self._kills else ""
        self._kills = kills
        if supervisor.was_halted:
            why = f", because it had been stopped by a signal for {STOPPED_SECONDS:g} s"
        detail = f"process {supervisor.pid} on {node} was killed{why}"
        return Failure(cause=failure.LOST_SUPERVISOR, detail=detail, exit_code=EXIT_CODE, node=node, time=time.time())

    def _end_agents(self, supervisor: _Supervisor) -> None:
        """Wait until the agents have ended the ranks, which hold the devices; end those that do not."""
        deadline = time.monotonic() + END_SECONDS
        while left := [pid for pid in supervisor.agents if _is_alive(pid)]:
            if time.monotonic() >= deadline:
                for pid in left:
                    with suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
                return
            self._wait(0.02)
            self._owed += self._signals()

    def _end(self, reason: Failure) -> NoReturn:
        """Report the end of the run, and end."""
        self._directory.remove(private.SECRET)
        num_attempts, num_restarts, num_ranks = _past(self._directory)
        seconds = time.monotonic() - self._began
        fields = {"cause": reason.cause, "detail": reason.detail, "rank": -1, "node": reason.node}
        self._directory.write_json(
            "report.json",
            {"format": 1, "exit_code": EXIT_CODE, "seconds": round(seconds, 3), "ranks": num_ranks,
             "attempts": max(1, num_attempts), "restarts": num_restarts, **fields},
        )  # fmt: skip
        self._directory.event("end", exit_code=EXIT_CODE, **fields)
        ranks = f"{num_ranks} rank{'s' if num_ranks != 1 else ''}"
        ranks += f" on {self._plan.num_nodes} nodes" if self._plan.num_nodes > 1 else ""
        hint = "start the run again"
        if can_start_again(self._plan) and not self._plan.max_restarts:
            hint += "; with --max-restarts N, echelon does so"
        self._say(
            f"echelon: {reason.cause}: {reason.detail}; the agents ended all ranks\n  hint: {hint}\n"
            f"echelon: {ranks} · {duration(seconds)} · exit {EXIT_CODE} · run {short_name(self._directory.path)}\n"
        )
        os._exit(EXIT_CODE)

    def _say(self, text: str) -> None:
        with suppress(OSError):  # the terminal is closed
            os.write(2, text.encode("utf-8", "replace"))


def _is_alive(pid: int) -> bool:
    process = process_state.read(pid)
    return process is not None and process.state not in "ZX"


def _past(directory: RunDirectory) -> tuple[int, int, int]:
    """Return the number of attempts so far, of restarts, and of the ranks of the last attempt."""
    num_attempts, num_restarts, num_ranks = 0, 0, 0
    with suppress(OSError), open(directory.file("events.jsonl"), "rb") as events:
        for line in events:
            if b'"event": "attempt"' in line and line.endswith(b"\n"):
                num_attempts, num_ranks = num_attempts + 1, int(json.loads(line)["ranks"])
            num_restarts += b'"event": "restart"' in line
    return num_attempts, num_restarts, num_ranks
