"""The pool of a node: processes that have imported what scripts import, and lend a fork of themselves to each run.

A pool outlives runs. The agent of a run asks it through a local socket that the user alone can reach. The fork is the
warm process of that run: it has the run's folder, environment, limits and streams, and ends with the run. The template
that it was forked from runs nothing of a user but imports, so that nothing of a run reaches the next one.
"""

import hashlib
import json
import os
import selectors
import signal
import socket
import struct
import time
from contextlib import suppress
from functools import partial
from typing import Any, Callable, Dict, List, NamedTuple

from ..environment.agent_place import agent_task
from . import link, pool_place, private, processes, sweep
from .warm_process import CannotStart, WarmProcess

MOST_TEMPLATES = 8
"""More scripts than this one after another, and the template that was used least recently makes place."""
LOOK_SECONDS = 5.0
_CREDENTIALS = struct.Struct("3i")  # struct ucred of unix(7)


class Request(NamedTuple):
    """What an agent asks for, and the files with it: the message itself, its end of the link, and two streams."""

    message: Dict[str, Any]
    descriptors: List[int]

    def close(self) -> None:
        for descriptor in self.descriptors:
            os.close(descriptor)


class Template:
    """A process that has imported what a script imports, and what it has lent."""

    def __init__(self, message: Dict[str, Any], folder: str, number: int) -> None:
        self.argv = program_of(message["argv"])
        self.is_ready = False
        self.waiting: List[Request] = []
        self.asked: List[Request] = []
        self.runs: List[int] = []
        self.num_runs = 0
        self.used_at = time.monotonic()
        self._output = [os.path.join(folder, pool_place.IMPORTS % (number, name)) for name in ("out", "err")]
        archive = os.path.join(folder, pool_place.ARCHIVE)
        environ = {name: value for name, value in message["environ"].items() if not pool_place.is_mark(name)}
        streams: List[int] = []
        os.chdir(message["cwd"])
        try:
            streams += [
                os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND, 0o600) for path in self._output
            ]
            self.process = WarmProcess(self.argv, environ, archive, *streams)
        finally:
            os.chdir("/")
            for stream in streams:
                os.close(stream)
        wanted = {name: message[name] for name in ("preload", "folder", "own", "num_ranks")}
        about = {"is_template": True, "output": self._output, "began_ns": time.time_ns()}
        link.send(self.process.socket, {**wanted, **about})

    def lend(self, request: Request) -> None:
        """Let a run have a fork, at once or after the imports."""
        self.used_at = time.monotonic()
        if self.is_ready:
            self.asked.append(request)
            link.send(self.process.socket, {}, request.descriptors)
        else:
            self.waiting.append(request)

    def note_ready(self, why_not: str) -> None:
        """Serve the runs that wait; without a safe fork, tell each why it starts its ranks otherwise."""
        self.is_ready = not why_not
        waiting, self.waiting = self.waiting, []
        for request in waiting:
            if self.is_ready:
                self.lend(request)
                continue
            with socket.socket(fileno=request.descriptors.pop(1)) as theirs:
                link.send(theirs, {"kind": "ready", "why_not": why_not, "seconds": 0.0, "pid": 0})
            request.close()

    def note_lent(self, pid: int) -> None:
        self.asked.pop(0).close()
        self.num_runs += 1
        self.runs.append(pid)

    @property
    def is_in_use(self) -> bool:
        states = [(run, processes.read(run)) for run in self.runs]
        self.runs = [run for run, process in states if process is not None and process.state not in "ZX"]
        return bool(self.runs or self.waiting or self.asked)

    def facts(self) -> Dict[str, Any]:
        """Return what `echelon pool status` shows of it."""
        return {
            "argv": self.argv,
            "pid": self.process.pid,
            "is_ready": self.is_ready,
            "runs": self.num_runs,
            "is_in_use": self.is_in_use,
            "idle_seconds": time.monotonic() - self.used_at,
            "own_bytes": processes.usage(self.process.pid).get("own_bytes", 0.0),
        }

    def end(self) -> None:
        """End the process; runs that have a fork of it go on."""
        for request in self.waiting + self.asked:
            request.close()
        self.process.close()
        sweep.send(self.process.pid, signal.SIGKILL)
        for path in self._output:
            private.remove(path)


class Pool:
    """A loop over agents that ask, templates that answer, and the time without a run."""

    def __init__(self, place: pool_place.Place, idle_seconds: float) -> None:
        self._place = place
        self._idle_seconds = idle_seconds
        self._began = self._used_at = time.monotonic()
        self._num_runs = self._num_templates = 0
        self._templates: Dict[str, Template] = {}
        self._selector = selectors.DefaultSelector()
        self._is_over = False
        self._digest = pool_place.digest(os.path.join(place.path, pool_place.ARCHIVE))
        self._selector.register(place.listener, selectors.EVENT_READ, self._accept)

    def run(self) -> None:
        """Serve until it is stopped, or no run has used it for the idle time."""
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, lambda _number, _frame: self._end())
        try:
            while not self._is_over:
                for key, _events in self._selector.select(min(LOOK_SECONDS, self._idle_seconds)):
                    if self._selector.get_map().get(key.fd) is key:
                        key.data()
                for _ in processes.ended():
                    pass  # a template that was ended
                if any(template.is_in_use for template in self._templates.values()):
                    self._used_at = time.monotonic()
                self._is_over = self._is_over or time.monotonic() - self._used_at > self._idle_seconds
        finally:
            for template in self._templates.values():
                template.end()
            self._place.leave()

    def _end(self) -> None:
        self._is_over = True

    def _accept(self) -> None:
        connection, _ = self._place.listener.accept()
        credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
        if _CREDENTIALS.unpack(credentials)[1] != os.geteuid():
            connection.close()
            return
        self._selector.register(connection, selectors.EVENT_READ, partial(self._hear, connection))

    def _hear(self, connection: socket.socket) -> None:
        """Answer one request; what is no request is left without an answer."""
        with connection, suppress(OSError, ValueError, KeyError, IndexError):
            self._selector.unregister(connection)
            packet = link.receive(connection)
            if packet is not None:
                request = Request(pool_place.content_of(packet[1][0]), packet[1])
                acts: Dict[str, Callable[[Request], Dict[str, Any]]] = {
                    "lend": self._answer, "status": self._status, "stop": self._stop
                }  # fmt: skip
                link.send(connection, acts[request.message["kind"]](request))

    def _answer(self, request: Request) -> Dict[str, Any]:
        """Accept the request of an agent, or say why it has to import by itself."""
        message = request.message
        why_not = pool_place.why_not_here(message)
        if message["digest"] != self._digest:
            why_not = "it was started by another version of echelon"
        why_not = why_not or self._lend(request)
        if why_not:
            request.close()
        else:
            self._num_runs += 1
        return {"why_not": why_not}

    def _lend(self, request: Request) -> str:
        """Let a run have a fork; return why it cannot."""
        key = key_of(request.message)
        self._used_at = time.monotonic()
        try:
            template = self._templates.get(key) or self._new(key, request.message)
        except (CannotStart, OSError) as error:
            return str(error)
        template.lend(request)
        return ""

    def _new(self, key: str, message: Dict[str, Any]) -> Template:
        """Start a template, in the place of the one that was used least recently if there are as many as may be."""
        if len(self._templates) >= MOST_TEMPLATES:
            idle = [key for key, template in self._templates.items() if template.is_ready and not template.asked]
            if not idle:
                raise CannotStart("it is importing for %d other scripts" % len(self._templates))
            self._drop(min(idle, key=lambda key: self._templates[key].used_at))
        self._num_templates += 1
        template = Template(message, self._place.path, self._num_templates)
        self._templates[key] = template
        self._selector.register(
            template.process.socket, selectors.EVENT_READ, partial(self._hear_template, key, template)
        )
        return template

    def _drop(self, key: str) -> None:
        template = self._templates.pop(key)
        self._selector.unregister(template.process.socket)
        template.end()

    def _hear_template(self, key: str, template: Template) -> None:
        packet = link.receive(template.process.socket)
        if packet is None or packet[0]["kind"] == "stale":
            asked, template.asked = ([], template.asked) if packet is None else (template.asked, [])
            self._drop(key)
            for request in asked:  # what it has imported was changed: the next one imports anew
                if self._lend(request):
                    request.close()
        elif packet[0]["kind"] == "ready":
            template.note_ready(packet[0]["why_not"])
            if packet[0]["why_not"]:
                self._drop(key)
        else:
            template.note_lent(packet[0]["pid"])

    def _status(self, request: Request) -> Dict[str, Any]:
        request.close()
        task = agent_task(os.environ)
        return {
            "node": (task.node if task is not None else "") or socket.gethostname(),
            "pid": os.getpid(),
            "seconds": time.monotonic() - self._began,
            "idle_seconds": self._idle_seconds,
            "unused_seconds": time.monotonic() - self._used_at,
            "runs": self._num_runs,
            "templates": [template.facts() for template in self._templates.values()],
        }

    def _stop(self, request: Request) -> Dict[str, Any]:
        self._end()
        return self._status(request)


def key_of(message: Dict[str, Any]) -> str:
    """Return a text that is equal for two requests that the same imports can serve."""
    environ = {name: value for name, value in message["environ"].items() if not pool_place.is_of_run(name)}
    wanted = [program_of(message["argv"]), environ, *(message[name] for name in ("preload", "folder", "own", "cwd"))]
    return hashlib.sha256(json.dumps([*wanted, message["num_ranks"] > 1], sort_keys=True).encode()).hexdigest()


def program_of(argv: List[str]) -> List[str]:
    """Return the words of a command line before the arguments of the script.

    >>> program_of(["python3", "-m", "train", "--lr", "0.1"]), program_of(["python3", "train.py", "--lr", "0.1"])
    (['python3', '-m', 'train'], ['python3', 'train.py'])
    """
    return argv[: 3 if argv[1] == "-m" else 2]


def main(folder: str, idle_seconds: float, archive: str) -> int:
    """Be the pool of this node, from a copy of the archive in its own folder; say so on stdout."""
    try:
        pool = Pool(pool_place.Place(folder, archive), idle_seconds)
    except (pool_place.Taken, OSError) as error:
        os.write(1, ("no: %s\n" % error).encode())
        return 1
    os.chdir("/")
    os.write(1, b"ready\n")
    nothing = os.open(os.devnull, os.O_RDWR)
    for standard in (0, 1, 2):
        os.dup2(nothing, standard)
    pool.run()
    return 0
