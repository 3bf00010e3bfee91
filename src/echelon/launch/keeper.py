"""Keep the supervisor of a run: pass signals on to it; if it is killed, start another one, or report the end.

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
from functools import partial
from typing import Any, NoReturn

from echelon.host import terminal
from echelon.launch import failure
from echelon.launch.agents import can_start_again
from echelon.launch.failure import Failure
from echelon.launch.kept import KeeperLink, ShownOutput, SupervisorProcess
from echelon.launch.restarts import Restarts
from echelon.launch.run_directory import RESERVE, RunDirectory
from echelon.launch.runs import short_name
from echelon.launch.signals import CAUGHT
from echelon.node import private, processes
from echelon.node.processes import STOPPED_SECONDS, HaltWatch
from echelon.orders.checkpoint import folder
from echelon.spec import Plan
from echelon.units import counted, duration

LOOK_SECONDS = 1.0
END_SECONDS = 20.0  # for agents to end the ranks of a lost supervisor, and for srun to end its step
STOPPED_END_SECONDS = 3.0  # the same, for a run that was asked to stop
_STOPS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
_HEARD = (*CAUGHT, signal.SIGQUIT, signal.SIGCHLD)


def fork_supervisor(plan: Plan, directory: RunDirectory, listener: socket.socket) -> KeeperLink:
    """Fork the supervisor, and return in its process; the process that was there before keeps it, and never returns.

    The keeper closes the listener, so that agents learn of the end of the supervisor; the next one opens its own.
    """
    keeper = _Keeper(plan, directory)
    while True:
        kept = keeper.fork()
        if kept is not None:
            return kept
        listener.close()
        keeper.stand_by()
        keeper.prepare_next()


class _Keeper:
    def __init__(self, plan: Plan, directory: RunDirectory) -> None:
        self._plan = plan
        self._directory = directory
        self._began = time.monotonic()
        self._kills = processes.oom_kills()
        self._restarts = Restarts(plan.max_restarts, partial(directory.newest_step, folder(plan.environ)))
        self._shown = ShownOutput()
        self._num_supervisors = 0
        self._stop = 0
        """The first signal that asked the run to stop; 0: none."""
        self._unsent: list[int] = []
        """Signals that no supervisor has got yet."""
        self._pipe = os.pipe()
        for end in self._pipe:
            os.set_blocking(end, False)
        self._mask = signal.pthread_sigmask(signal.SIG_BLOCK, _HEARD)
        self._old_wakeup = signal.set_wakeup_fd(self._pipe[1], warn_on_full_buffer=False)
        self._old: dict[int, Any] = {}
        for number in _HEARD:
            if number == signal.SIGHUP and signal.getsignal(number) == signal.SIG_IGN:
                continue  # nohup had set this handler
            self._old[number] = signal.signal(number, lambda _number, _frame: None)

    def fork(self) -> KeeperLink | None:
        """Fork a supervisor; return its end of the link in its process, and None in the keeper's."""
        num_attempts, _ = _attempts(self._directory)
        sys.stdout.flush()
        sys.stderr.flush()
        ours, theirs = socket.socketpair()
        signal.pthread_sigmask(signal.SIG_BLOCK, _HEARD)
        try:
            pid = os.fork()
        except OSError as error:
            if not self._num_supervisors:
                raise
            detail = f"no other supervisor can be started: {error.strerror}"
            self._end(Failure(cause=failure.LOST_SUPERVISOR, detail=detail, exit_code=_code(signal.SIGKILL)))
        if pid == 0:
            ours.close()
            signal.set_wakeup_fd(self._old_wakeup)
            for number, handler in self._old.items():
                signal.signal(number, handler)
            for end in self._pipe:
                os.close(end)
            signal.pthread_sigmask(signal.SIG_SETMASK, {*self._mask, *CAUGHT})
            self._directory.event("supervisor", pid=os.getpid(), node=socket.gethostname())
            return KeeperLink(
                link=theirs, began=self._began, num_earlier_supervisors=self._num_supervisors,
                num_attempts=num_attempts, restarts=self._restarts, shown=self._shown, mask=self._mask,
            )  # fmt: skip
        theirs.close()
        ours.setblocking(False)
        self._supervisor = SupervisorProcess(pid, ours)
        self._num_supervisors += 1
        self._restarts.note_start()
        signal.pthread_sigmask(signal.SIG_SETMASK, self._mask)
        return None

    # While the supervisor lives

    def stand_by(self) -> None:
        """Pass signals on until the supervisor has ended."""
        supervisor, watch = self._supervisor, HaltWatch()
        while True:
            self._hear()
            self._pass_on()
            ended, status = os.waitpid(supervisor.pid, os.WNOHANG)
            if ended:
                self._hear()
                supervisor.status = os.waitstatus_to_exitcode(status)
                return
            if watch.is_frozen(supervisor.pid) and (self._may_follow or self._stop):
                supervisor.was_halted = True
                os.kill(supervisor.pid, signal.SIGKILL)
            self._wait(LOOK_SECONDS)

    def _hear(self) -> None:
        self._supervisor.hear()
        if counts := self._supervisor.told("restarts"):
            self._restarts.adopt(counts[-1])

    @property
    def _may_follow(self) -> bool:
        return can_start_again(self._plan) and self._restarts.has_left and not self._stop

    def _read_signals(self) -> list[int]:
        """Return the signals that have come, and note the first one that asks the run to stop."""
        try:
            numbers = [number for number in os.read(self._pipe[0], 4096) if number in self._old]
        except BlockingIOError:
            return []
        numbers = [number for number in numbers if number != signal.SIGCHLD]
        self._stop = self._stop or next((number for number in numbers if number in _STOPS), 0)
        return numbers

    def _pass_on(self) -> None:
        supervisor = self._supervisor
        numbers, self._unsent = [*self._unsent, *self._read_signals()], []
        for number in numbers:
            if number == signal.SIGQUIT or (supervisor.is_dismissed and number in _STOPS):
                os.kill(supervisor.pid, number)  # it does not listen to its keeper for this, or no more
            elif not supervisor.is_dismissed:
                supervisor.send(number)

    def _wait(self, seconds: float) -> None:
        links = [self._supervisor.link.fileno()] if self._supervisor.is_linked else []
        select.select([self._pipe[0], *links], [], [], max(0.0, seconds))

    # When it has ended

    def prepare_next(self) -> None:
        """Return if another supervisor is to follow the one that has ended; otherwise report, and end this process."""
        supervisor = self._supervisor
        if supervisor.status >= 0 or supervisor.is_dismissed:
            if supervisor.status >= 0:
                os._exit(supervisor.status)
            if -supervisor.status != signal.SIGKILL:
                signal.signal(-supervisor.status, signal.SIG_DFL)
            os.kill(os.getpid(), -supervisor.status)
            os._exit(_code(-supervisor.status))
        self._unsent += self._read_signals()
        reason = self._reason()
        lasted = time.monotonic() - supervisor.began
        goes_on = self._may_follow and supervisor.end is None and self._restarts.take(reason, lasted_seconds=lasted)
        if not goes_on:
            self._directory.unlock()  # the agents must know that nobody follows
        seconds = self._restarts.wait_seconds
        later = f" in {seconds:g} s" if goes_on and seconds else ""
        consequence = f"another one starts all ranks again{later}" if goes_on else "the agents end all ranks"
        if supervisor.end is not None:
            consequence = "the ranks had ended"
        self._say(f"echelon: {reason.cause}: {reason.detail}; {consequence}")
        self._end_agents()
        deadline = time.monotonic() + (seconds if goes_on else 0.0)
        while not self._stop and (rest := deadline - time.monotonic()) > 0:
            self._wait(rest)
            self._unsent += self._read_signals()
        if not goes_on or self._stop:
            self._end(reason)
        self._directory.event("restart", cause=reason.cause, rank=-1, error="", nodes=self._plan.num_nodes)

    def _reason(self) -> Failure:
        """Return why the supervisor is gone."""
        supervisor, kills, node = self._supervisor, processes.oom_kills(), socket.gethostname()
        how = failure.how(supervisor.status)
        if supervisor.was_halted:
            how += f", because it had been stopped by a signal for {STOPPED_SECONDS:g} s"
        elif kills > self._kills:
            how += ", when memory ran out"
        self._kills = kills
        detail = f"process {supervisor.pid} on {node} {how}"
        return Failure(
            cause=failure.LOST_SUPERVISOR,
            detail=detail,
            exit_code=_code(-supervisor.status),
            node=node,
            time=time.time(),
        )

    def _end_agents(self) -> None:
        """Wait until the agents have ended the ranks, which hold the devices; end those that do not."""
        agents = [int(pid) for pid in self._supervisor.told("agents")]
        began = time.monotonic()
        while left := [pid for pid in agents if self._is_agent(pid)]:
            self._wait(0.02)
            self._unsent += self._read_signals()
            if time.monotonic() - began > (STOPPED_END_SECONDS if self._stop else END_SECONDS):
                for pid in left:
                    with suppress(OSError):  # it has just ended
                        os.kill(pid, signal.SIGKILL)
                return

    def _is_agent(self, pid: int) -> bool:
        """Say whether a process is one of this run: its number may have been given to another program."""
        process = processes.read(pid)
        if process is None or process.state in "ZX":
            return False
        return os.fsencode(self._plan.run_directory) in processes.words(pid, "cmdline")

    def _end(self, reason: Failure) -> NoReturn:
        self._directory.remove(private.SECRET)
        code = self._supervisor.end
        if code is not None:  # the ranks had ended
            reason = Failure(cause=reason.cause, detail=reason.detail, exit_code=code, node=reason.node)
        elif self._stop:
            name = signal.Signals(self._stop).name
            reason = Failure(cause=failure.INTERRUPTED, detail=name, exit_code=_code(self._stop))
        num_attempts, num_ranks = _attempts(self._directory)
        seconds = time.monotonic() - self._began
        fields = {"cause": reason.cause, "detail": reason.detail, "rank": -1, "node": reason.node}
        self._directory.write_json(
            "report.json",
            {"format": 1, "exit_code": reason.exit_code, "seconds": round(seconds, 3), "ranks": num_ranks,
             "attempts": max(1, num_attempts), "restarts": self._restarts.count, **fields},
        )  # fmt: skip
        self._directory.remove(RESERVE)
        self._directory.event("end", exit_code=reason.exit_code, **fields)
        if reason.cause == failure.INTERRUPTED:
            self._say(f"echelon: {reason.detail} stopped the run")
        elif code is None:
            may_be_asked = can_start_again(self._plan) and not self._plan.max_restarts
            self._say(
                f"  hint: start the run again{'; with --max-restarts N, echelon does so' if may_be_asked else ''}"
            )
        ranks = counted(num_ranks, "rank")
        ranks += f" on {self._plan.num_nodes} nodes" if self._plan.num_nodes > 1 else ""
        name = short_name(self._directory.path)
        self._say(f"echelon: {ranks} · {duration(seconds)} · exit {reason.exit_code} · run {name}")
        os._exit(reason.exit_code)

    def _say(self, line: str) -> None:
        clear = "\r\x1b[2K" if terminal.is_terminal(sys.stderr) else ""  # the progress of a start may stand there
        with suppress(OSError):  # the terminal is closed
            os.write(2, f"{clear}{line}\n".encode("utf-8", "replace"))


def _code(number: int) -> int:
    """Return the exit code of a process that a signal ended, as shells show it."""
    return 128 + number


def _attempts(directory: RunDirectory) -> tuple[int, int]:
    """Return the number of attempts so far, and of the ranks of the last one."""
    count, num_ranks = 0, 0
    with suppress(OSError), open(directory.file("events.jsonl"), "rb") as events:
        for line in events:
            if b'"event": "attempt"' in line:
                with suppress(ValueError, KeyError):  # a full disk cut the line
                    num_ranks = int(json.loads(line)["ranks"])
                count += 1
    return count, num_ranks
