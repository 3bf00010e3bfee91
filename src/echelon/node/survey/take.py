"""Take a survey in a child process that can be killed: a blocking part costs one deadline, and the others continue."""

import json
import os
import select
import signal
import socket
import time
from typing import Any, Callable, Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple

from ...hardware import files, vendors
from ...topology import discover
from ...topology.node import Node
from . import devices, folders, network, process, software
from .nouns import Survey, plain, rebuild

PART_SECONDS = 10.0
TOPOLOGY = "topology"
_CHUNK = 1 << 16


class SurveyRequest(NamedTuple):
    """The request of a survey."""

    root: str = "/"
    is_full: bool = False  # whether to run slow tools as well
    search_path: Sequence[str] = ()  # the package search path of the ranks' Python
    checkpoints: str = ""
    binds: Sequence[str] = ()  # paths that a container should show
    node: str = ""  # the caller's name of the node; empty: the node's own name
    part_seconds: float = PART_SECONDS
    is_told: bool = True  # whether a lookout sends the survey, or only samples what it found


class Part(NamedTuple):
    """A part of a survey, and the part that must have answered before."""

    name: str
    read: Callable[[], Any]
    needs: str = ""


def survey(asked: SurveyRequest, environ: Mapping[str, str]) -> Survey:
    """Return all parts of this node's survey that answered in time."""
    began = time.monotonic()
    values, silent = gather(parts(asked, environ), seconds=asked.part_seconds)
    answers = {name: value for name, value in values.items() if value is not None and name != TOPOLOGY}
    name = asked.node or _hostname(asked.root)
    rebuilt = rebuild(Survey, {**answers, "node": name, "answered": sorted(answers), "silent": silent})
    taken: Survey = rebuilt._replace(seconds=time.monotonic() - began, time=time.time())
    return taken


def _hostname(root: str) -> str:
    if os.path.realpath(root) == "/":
        return socket.gethostname()
    return files.text(os.path.join(root, "proc/sys/kernel/hostname"))


def parts(asked: SurveyRequest, environ: Mapping[str, str]) -> List[Part]:
    """Return the parts with their functions; those that cannot block come first."""
    seen: Dict[str, Node] = {}

    def node() -> Node:
        if "node" not in seen:
            seen["node"] = discover.read(asked.root, environ)
        return seen["node"]

    def read_health() -> Any:
        vendor, seen = vendors.of(node().devices), node().devices
        return vendor.read_health(asked.root, seen, os.environ) if asked.is_full or vendor.is_health_fast else None

    def read_folders() -> Any:
        return folders.read(asked.root, environ, checkpoints=asked.checkpoints)

    def read_quotas() -> Any:
        return folders.read_quotas(asked.root, environ, checkpoints=asked.checkpoints) if asked.is_full else None

    def read_software() -> Any:
        return software.read(asked.root, environ, search_path=asked.search_path, binds=asked.binds)

    return [
        Part("settings", lambda: process.read_settings(environ)),
        Part("limits", lambda: process.read_limits(asked.root)),
        Part("software", read_software),
        Part("folders", read_folders),
        Part(TOPOLOGY, lambda: bool(node())),
        Part("cores", lambda: process.read_cores(asked.root, node()), TOPOLOGY),
        Part("devices", lambda: devices.read(node(), environ), TOPOLOGY),
        Part("network", lambda: network.read(asked.root, node(), environ), TOPOLOGY),
        Part("healths", read_health, TOPOLOGY),
        Part("quotas", read_quotas),
    ]


def gather(wanted: List[Part], *, seconds: float) -> Tuple[Dict[str, Any], Dict[str, str]]:
    """Return the value of each part, and why parts are missing; a part that exceeds `seconds` is killed."""
    values: Dict[str, Any] = {}
    silent: Dict[str, str] = {}
    rest = wanted
    while rest:
        answers, why_no_more = _in_child(rest, seconds)
        for name, answer in answers:
            if "value" in answer:
                values[name] = answer["value"]
            else:
                silent[name] = answer["why"]
        missing = [part for part in rest if part.name not in values and part.name not in silent]
        if missing:  # the child stopped at the first of these
            silent[missing[0].name] = why_no_more
        rest = [part for part in missing[1:] if part.needs not in silent]
    return values, silent


def _in_child(wanted: List[Part], seconds: float) -> Tuple[List[Tuple[str, Dict[str, Any]]], str]:
    """Read the parts one after the other in a child; return the answers, and why the last ones are missing."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        _be_child(wanted, reading, writing)
    os.close(writing)
    answers: List[Tuple[str, Dict[str, Any]]] = []
    data: Optional[bytes] = None
    unread = b""
    deadline = time.monotonic() + seconds
    try:
        while data := _read(reading, deadline):
            *lines, unread = (unread + data).split(b"\n")
            for line in lines:
                name, answer = json.loads(line)
                answers.append((name, answer))
                deadline = time.monotonic() + seconds
    finally:
        os.close(reading)
        os.kill(child, signal.SIGKILL)
        status = _reap(child)
    return answers, "did not answer within %g s" % seconds if data is None else "failed: %s" % _ending(status)


def _read(pipe: int, deadline: float) -> Optional[bytes]:
    """Return the next data, b"" at the end of file, or None after the deadline."""
    ready, _, _ = select.select([pipe], [], [], max(0.0, deadline - time.monotonic()))
    return os.read(pipe, _CHUNK) if ready else None


def _ending(status: int) -> str:
    how = "signal %d" % os.WTERMSIG(status) if os.WIFSIGNALED(status) else "exit code %d" % os.WEXITSTATUS(status)
    return "its reader ended with %s" % how


def _reap(child: int) -> int:
    """Wait a moment for the child's end and return its status; a child that hangs in the kernel is abandoned."""
    for _ in range(500):
        pid, status = os.waitpid(child, os.WNOHANG)
        if pid:
            return status
        time.sleep(0.002)
    return 0


def _be_child(wanted: List[Part], reading: int, writing: int) -> None:
    """Read and send the parts, then exit without the parent's clean-up."""
    try:
        os.close(reading)
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_DFL)
        for name, read, _needs in wanted:
            try:
                answer = {"value": plain(read())}
            except Exception as error:  # noqa: BLE001  a part that fails is reported, with the others
                answer = {"why": "failed: %s: %s" % (type(error).__name__, error)}
            data = json.dumps([name, answer]).encode() + b"\n"
            while data:
                data = data[os.write(writing, data) :]
    finally:
        os._exit(0)
