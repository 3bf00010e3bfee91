"""The lease on a chain's run directory: one job at a time goes on with a training.

The lock of a run's events does the same where the file system has locks; Lustre is often mounted without.

    lease.json: {"format": 1, "job_id": "71", "node": "nid005001", "pid": 812, "time": 1764208000.1}
"""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Mapping
from typing import Any

from echelon.environment import regular_files
from echelon.errors import EchelonError, UsageError
from echelon.host import Host
from echelon.node import private
from echelon.scheduler.slurm import queue

NAME = "lease.json"
WAIT_SECONDS = 120.0  # for a predecessor that Slurm is ending
PAUSE_SECONDS = 1.0
_ENDING = "COMPLETING"


class Lease:
    """The right to write into a run directory."""

    def __init__(self, path: str, content: bytes) -> None:
        self._path = path
        self._content = content

    def release(self) -> None:
        if _content(self._path) == self._content:
            private.remove(self._path)


def take(run_directory: str, job_id: str, host: Host) -> Lease:
    """Take the lease; raise UsageError with the holder's name while another job has it."""
    path = os.path.join(run_directory, NAME)
    mine = {"format": 1, "job_id": job_id, "node": socket.gethostname(), "pid": os.getpid(), "time": host.now()}
    content = json.dumps(mine).encode() + b"\n"
    deadline = host.now() + WAIT_SECONDS
    while True:
        try:
            _create(path, content)
        except FileExistsError:
            content_of_other = _content(path)
        else:
            return Lease(path, content)
        holder = regular_files.json_object(content_of_other)
        state = _state(holder, mine, host)
        if not state and _content(path) == content_of_other:
            private.remove(path)
        elif state and (state != _ENDING or host.now() > deadline):
            raise _held(run_directory, holder)
        elif state:
            time.sleep(PAUSE_SECONDS)


def refuse_living_run(run_directory: str) -> None:
    """Raise UsageError while a supervisor works in the directory, also one that has no lease."""
    if private.is_run_alive(run_directory):
        raise UsageError(
            f"the run directory {run_directory} belongs to a run that is still running",
            hint="wait for its end, or stop it",
        )


def _state(holder: Mapping[str, Any], mine: Mapping[str, Any], host: Host) -> str:
    """Return how the holder is: empty if it is gone, otherwise Slurm's word, or "unknown"."""
    is_here = holder.get("node") == mine["node"]
    if is_here and not _is_alive(holder.get("pid")):
        return ""
    job_id = str(holder.get("job_id") or "")
    if not job_id:
        return "unknown" if holder else ""
    if job_id == mine["job_id"]:
        return "RUNNING" if is_here else ""  # the same job on another node: Slurm has started it again
    try:
        state = queue.state(host, job_id)
    except queue.UnknownJob:
        return ""
    except EchelonError:
        return "unknown"
    return "" if state.is_over else state.name


def _is_alive(pid: object) -> bool:
    return isinstance(pid, int) and pid != os.getpid() and os.path.exists(f"/proc/{pid}")


def _held(run_directory: str, holder: Mapping[str, Any]) -> UsageError:
    job_id = holder.get("job_id")
    who = f"job {job_id}" if job_id else f"process {holder.get('pid')}"
    since = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(float(holder.get("time") or 0)))
    return UsageError(
        f"{who} on {holder.get('node')} holds the run directory {run_directory} since {since}, and only one job at a "
        "time may go on with a training",
        hint=f"wait for its end{f', or stop it: scancel {job_id}' if job_id else ''}",
    )


def _create(path: str, content: bytes) -> None:
    """Let the file appear as a whole; raise FileExistsError if there is one."""
    beside = f"{path}.{os.getpid()}"
    private.write(beside, content)
    try:
        os.link(beside, path)
    finally:
        private.remove(beside)


def _content(path: str) -> bytes:
    try:
        return regular_files.read_text(path).encode()
    except OSError:
        return b""
