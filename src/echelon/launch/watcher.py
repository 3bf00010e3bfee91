"""Report that the supervisor was killed, since it cannot: a small process that outlives it."""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
import time
from dataclasses import dataclass

from echelon.launch import failure
from echelon.launch.console import duration
from echelon.launch.run_directory import RunDirectory
from echelon.launch.runs import short_name
from echelon.node import memory, private, run_lock
from echelon.spec import Plan

EXIT_CODE = 128 + signal.SIGKILL
LOCK_SECONDS = 5.0  # for the kernel to end the supervisor's process


@dataclass(slots=True)
class Watcher:
    """The supervisor's end of a socket: when it closes without a word, the supervisor was killed."""

    link: socket.socket

    @classmethod
    def start(cls, plan: Plan, directory: RunDirectory) -> Watcher:
        """Fork a process that is no child of this one, so that nobody has to wait for it."""
        ours, theirs = socket.socketpair()
        sys.stdout.flush()
        sys.stderr.flush()
        supervisor = os.getpid()
        between = os.fork()
        if between == 0:
            try:
                os.setsid()
                if os.fork() == 0:
                    _watch(theirs.fileno(), supervisor, plan, directory.path)
            finally:
                os._exit(0)
        os.waitpid(between, 0)
        theirs.close()
        return cls(ours)

    def dismiss(self) -> None:
        """Let the watcher end: the run is over, and reported."""
        try:
            self.link.sendall(b"bye")
        except OSError:
            pass  # it was killed
        self.link.close()


def _watch(descriptor: int, supervisor: int, plan: Plan, run_directory: str) -> None:
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, signal.SIG_IGN)
    began, kills_before = time.time(), memory.oom_kills()
    os.close(0)
    os.close(1)  # whoever reads the output of the run must see its end
    os.closerange(3, descriptor)  # the lock of the run, and the listening port
    os.closerange(descriptor + 1, 65536)
    if os.read(descriptor, 3):
        return
    deadline = time.monotonic() + LOCK_SECONDS
    while run_lock.is_held(run_directory) and time.monotonic() < deadline:
        time.sleep(0.02)
    private.remove(os.path.join(run_directory, private.SECRET))
    why = ", when memory ran out" if memory.oom_kills() > kills_before else ""
    detail = f"process {supervisor} on {socket.gethostname()} was killed{why}; the agents end all ranks"
    _report(plan, run_directory, detail, time.time() - began)


def _report(plan: Plan, run_directory: str, detail: str, seconds: float) -> None:
    attempts, num_ranks = _attempts(run_directory)
    fields = {"cause": failure.LOST_SUPERVISOR, "detail": detail, "rank": -1, "node": socket.gethostname()}
    report = {"format": 1, "exit_code": EXIT_CODE, "seconds": round(seconds, 3), "ranks": num_ranks,
              "attempts": attempts, "restarts": max(0, attempts - 1), **fields}  # fmt: skip
    try:
        private.write(os.path.join(run_directory, "report.json"), json.dumps(report, indent=1).encode() + b"\n")
        line = {"time": round(time.time(), 3), "event": "end", "exit_code": EXIT_CODE, **fields}
        with open(os.path.join(run_directory, "events.jsonl"), "ab") as events:
            events.write(json.dumps(line).encode() + b"\n")
    except OSError:
        pass  # a full disk; the lines below still say what happened
    ranks = f"{num_ranks} rank{'s' if num_ranks != 1 else ''}"
    nodes = f" on {plan.num_nodes} nodes" if plan.num_nodes > 1 else ""
    end = f"{ranks}{nodes} · {duration(seconds)} · exit {EXIT_CODE} · run {short_name(run_directory)}"
    text = f"echelon: {failure.LOST_SUPERVISOR}: {detail}\n  hint: start the run again\nechelon: {end}\n"
    try:
        os.write(2, text.encode("utf-8", "replace"))
    except OSError:
        pass  # the terminal is closed


def _attempts(run_directory: str) -> tuple[int, int]:
    """Return how many attempts the run had, and the number of ranks of the last one."""
    count, num_ranks = 0, 0
    try:
        with open(os.path.join(run_directory, "events.jsonl"), "rb") as events:
            for line in events:
                if b'"event": "attempt"' in line and line.endswith(b"\n"):
                    count, num_ranks = count + 1, int(json.loads(line)["ranks"])
    except OSError:
        pass
    return max(1, count), num_ranks
