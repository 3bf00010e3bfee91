"""`python3 node.pyz survey DIRECTORY`: survey this node, send the answer, and try the other nodes' doors."""

import json
import os
import select
import selectors
import socket
import sys
import time
from typing import Any, Dict, List, Mapping, NamedTuple, Sequence, Tuple

from ...environment.agent_place import agent_task
from .. import private
from ..channel import Channel, Closed
from ..connect import ConnectError, connect
from . import take
from .nouns import plain

CONNECT_SECONDS = 3.0
_GREETING_BYTES = 16


class NodePort:
    """A port of this node that sends the run's word to each visitor, which thereby recognises the node."""

    def __init__(self, word: str, address: str = "") -> None:
        self.socket = socket.create_server((address, 0), backlog=512)
        self.socket.setblocking(False)
        self.port: int = self.socket.getsockname()[1]
        self._word = word.encode()

    def answer(self) -> None:
        """Greet one visitor and close the connection."""
        try:
            visitor, _ = self.socket.accept()
        except OSError:
            return
        with visitor:
            visitor.settimeout(1.0)
            try:
                visitor.sendall(self._word)
            except OSError:
                pass  # the visitor reports the error


def partners(index: int, count: int) -> List[int]:
    """Return the nodes to connect to: all if there are few, else those at distances 1, 2, 4, … in both directions."""
    if count <= 16:
        return [other for other in range(count) if other != index]
    steps = [1 << power for power in range(count.bit_length()) if 1 << power < count]
    both = [(index + sign * step) % count for step in steps for sign in (1, -1)]
    return [other for other in dict.fromkeys(both) if other != index]


def visit(doors: Mapping[str, Tuple[str, int]], word: str, *, own: NodePort, seconds: float) -> Dict[str, str]:
    """Connect to all doors at once, with our own door open; return the nodes that were not reached, with reasons."""
    unreached: Dict[str, str] = {}
    selector = selectors.DefaultSelector()
    selector.register(own.socket, selectors.EVENT_READ, "")
    waiting = 0
    for node, (host, port) in doors.items():
        try:
            sock = _begin(host, port)
        except OSError as error:
            unreached[node] = _why(host, error)
            continue
        selector.register(sock, selectors.EVENT_READ, node)
        waiting += 1
    deadline = time.monotonic() + seconds
    while waiting and time.monotonic() < deadline:
        for key, _ in selector.select(max(0.0, deadline - time.monotonic())):
            if not key.data:
                own.answer()
                continue
            selector.unregister(key.fileobj)
            waiting -= 1
            why = _greeting(key.fileobj, word)  # type: ignore[arg-type]
            if why:
                unreached[key.data] = why
    for key in list(selector.get_map().values()):
        if key.data:
            unreached[key.data] = "no answer within %g s" % seconds
            key.fileobj.close()  # type: ignore[union-attr]
    selector.close()
    return unreached


def _begin(host: str, port: int) -> socket.socket:
    family, kind, protocol, _, address = socket.getaddrinfo(host, port, socket.AF_UNSPEC, socket.SOCK_STREAM)[0]
    sock = socket.socket(family, kind, protocol)
    sock.setblocking(False)
    code = sock.connect_ex(address)
    if code not in (0, 115):  # EINPROGRESS
        sock.close()
        raise OSError(code, os.strerror(code))
    return sock


def _greeting(sock: socket.socket, word: str) -> str:
    """Return why the other end is not the node's door; empty if it is."""
    with sock:
        try:
            code = sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
            if code:
                return os.strerror(code)
            heard = sock.recv(_GREETING_BYTES)
        except OSError as error:
            return str(error.strerror or error)
    return "" if heard == word.encode()[:_GREETING_BYTES] else "another service answers there"


def _why(host: str, error: OSError) -> str:
    if isinstance(error, socket.gaierror):
        return "the name %s does not resolve" % host
    return str(error.strerror or error)


def doors_of(nodes: Sequence[Tuple[str, str, int]], index: int) -> Dict[str, Tuple[str, int]]:
    """Return the doors that a node tries: node, name and port of each, in the order of the nodes."""
    chosen = [nodes[other] for other in partners(index, len(nodes))]
    return {node: (host, port) for node, host, port in chosen}


ORDER = "survey.json"
PATIENCE_SECONDS = 120.0


class SurveySpec(NamedTuple):
    """The content of survey.json."""

    addresses: List[Tuple[str, int]]  # addresses of the receiver
    asked: Dict[str, Any]
    connect_seconds: float
    word: str  # the greeting of all doors


def write(directory: str, spec: SurveySpec, secret: bytes) -> None:
    """Write the order and the secret, readable only by the user."""
    private.write(os.path.join(directory, ORDER), json.dumps(spec._asdict()).encode())
    private.write_secret(directory, secret)


def read(directory: str) -> Tuple[SurveySpec, bytes]:
    with open(os.path.join(directory, ORDER), encoding="utf-8") as file:
        fields = json.load(file)
    fields["addresses"] = [(host, port) for host, port in fields["addresses"]]
    return SurveySpec(**fields), private.read_secret(directory)


def main(directory: str, environ: Mapping[str, str]) -> int:
    """Survey this node and answer until the receiver closes the connection."""
    spec, secret = read(directory)
    task = agent_task(environ)
    asked = take.SurveyRequest(**spec.asked)._replace(node=task.node if task else "")
    door = NodePort(spec.word)
    index = task.agent_index if task else 0
    survey = take.survey(asked, environ)
    hello = facts(index, survey.node)
    try:
        channel = connect(spec.addresses, secret, hello, seconds=spec.connect_seconds)
    except ConnectError as error:
        sys.stderr.write("echelon: survey of %s: %s\n" % (survey.node, error))
        return 1
    channel.send("survey", survey=plain(survey), port=door.port)
    try:
        _serve(channel, door, spec.word)
    except Closed:
        return 0
    return 0


def facts(index: int, node: str) -> Dict[str, Any]:
    return {
        "agent_index": index,
        "node_rank": index,
        "node": node,
        "first_local_rank": 0,
        "num_ranks": 0,
        "local_world_size": 0,
        "num_cores": 0,
        "num_devices": 0,
        "agent_pid": os.getpid(),
    }


def _serve(channel: Channel, door: NodePort, word: str) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while time.monotonic() < deadline:
        channel.flush()
        writing = [channel.fileno()] if channel.has_unsent else []
        ready, _, _ = select.select([channel.fileno(), door.socket.fileno()], writing, [], 1.0)
        if door.socket.fileno() in ready:
            door.answer()
        for message in channel.receive() if channel.fileno() in ready else ():
            if message["kind"] == "end":
                return
            if message["kind"] == "visit":
                doors = {node: (host, port) for node, (host, port) in message["doors"].items()}
                channel.send("visited", unreached=visit(doors, word, own=door, seconds=message["seconds"]))
