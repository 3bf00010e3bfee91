"""Where Horovod's ranks meet: keys and values by HTTP, which horovodrun would serve, in the first agent's own loop."""

import fcntl
import selectors
import socket
import struct
import time
from functools import partial
from typing import Any, Dict, List, Mapping, NamedTuple, Optional, Tuple

from ..environment import frameworks
from ..environment.place import Place

LARGEST_VALUE_BYTES = 1 << 24  # a rank puts 136 bytes for each of the others (gloo/transport/tcp/address.h)
KEPT_BYTES = 1 << 30  # of 2,800 ranks; each of them holds as many connections
LARGEST_HEAD_BYTES = 1 << 13
PATIENCE_SECONDS = 30.0
ACCEPTED_AT_ONCE = 64  # the agent's other duties come in between
GET_ADDRESS = 0x8915  # SIOCGIFADDR of linux/sockios.h
WORDS = {200: "OK", 400: "Bad Request", 404: "Not Found", 405: "Method Not Allowed", 413: "Content Too Large",
         507: "Insufficient Storage"}  # fmt: skip


class Request(NamedTuple):
    """What a caller wants."""

    method: str
    key: str  # "/scope/key"
    value: bytes


class Wrong(Exception):
    """A request that is answered with a number only."""

    def __init__(self, status: int) -> None:
        super().__init__(WORDS[status])
        self.status = status


class _Caller:
    """A connection, which brings one request and takes one answer."""

    def __init__(self, sock: socket.socket) -> None:
        self.socket = sock
        self.heard = bytearray()
        self.answer = memoryview(b"")
        self.deadline = time.monotonic() + PATIENCE_SECONDS


class Store:
    """Answers `PUT`, `GET` and `DELETE` of /scope/key as horovodrun's server does."""

    def __init__(self, selector: selectors.BaseSelector, address: str) -> None:
        self._selector = selector
        self._kept: Dict[str, bytes] = {}
        self._kept_bytes = 0
        self._callers: Dict[_Caller, None] = {}
        self._listener = socket.create_server((address, 0), backlog=4096)
        self._listener.setblocking(False)
        selector.register(self._listener, selectors.EVENT_READ, self._accept)

    @property
    def port(self) -> int:
        port: int = self._listener.getsockname()[1]
        return port

    def close(self) -> None:
        """Forget everything; the next attempt meets at a store of its own."""
        for caller in list(self._callers):
            self._drop(caller)
        self._selector.unregister(self._listener)
        self._listener.close()

    def _accept(self) -> None:
        now = time.monotonic()
        for silent in [caller for caller in self._callers if caller.deadline < now]:
            self._drop(silent)
        for _ in range(ACCEPTED_AT_ONCE):
            try:
                sock, _address = self._listener.accept()
            except OSError:  # nobody is left, or no descriptor is: Horovod's ranks call again
                return
            sock.setblocking(False)
            caller = _Caller(sock)
            self._callers[caller] = None
            self._selector.register(sock, selectors.EVENT_READ, partial(self._hear, caller))

    def _hear(self, caller: _Caller) -> None:
        try:
            data = caller.socket.recv(1 << 16)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._drop(caller)
            return
        caller.heard += data
        try:
            request = parse(caller.heard)
            if request is None:
                return
            answer = response(200, self._carry_out(request))
        except Wrong as error:
            answer = response(error.status)
        caller.answer = memoryview(answer)
        self._selector.modify(caller.socket, selectors.EVENT_WRITE, partial(self._say, caller))
        self._say(caller)

    def _say(self, caller: _Caller) -> None:
        try:
            sent = caller.socket.send(caller.answer)
        except BlockingIOError:
            return
        except OSError:
            self._drop(caller)
            return
        caller.answer = caller.answer[sent:]
        if not caller.answer:
            self._drop(caller)

    def _drop(self, caller: _Caller) -> None:
        del self._callers[caller]
        self._selector.unregister(caller.socket)
        caller.socket.close()

    def _carry_out(self, request: Request) -> bytes:
        """Keep, return or forget a value; raise Wrong where there is none, or no room."""
        if request.method == "GET":
            if request.key not in self._kept:
                raise Wrong(404)  # Horovod asks again until it is there
            return self._kept[request.key]
        old = len(self._kept.pop(request.key, b""))
        self._kept_bytes -= old
        if request.method == "PUT":
            if self._kept_bytes + len(request.value) > KEPT_BYTES:
                raise Wrong(507)
            self._kept[request.key] = request.value
            self._kept_bytes += len(request.value)
        return b""  # a rank deletes its own key once all have met, so that a second hvd.init() waits for the new one


def parse(heard: bytearray) -> Optional[Request]:
    """Return the request, None while it is not whole; raise Wrong for what Horovod would not say."""
    end = heard.find(b"\r\n\r\n", 0, LARGEST_HEAD_BYTES)
    if end < 0:
        if len(heard) >= LARGEST_HEAD_BYTES:
            raise Wrong(400)
        return None
    first, *fields = bytes(heard[:end]).decode("latin-1").split("\r\n")
    words = first.split(" ")
    if len(words) != 3 or words[1].count("/") != 2 or not words[1].startswith("/"):
        raise Wrong(400)
    if words[0] not in ("GET", "PUT", "DELETE"):
        raise Wrong(405)
    size = _size(fields)
    if size > LARGEST_VALUE_BYTES:
        raise Wrong(413)
    begin = end + 4
    return Request(words[0], words[1], bytes(heard[begin : begin + size])) if len(heard) >= begin + size else None


def _size(fields: List[str]) -> int:
    for field in fields:
        name, _, value = field.partition(":")
        if name.strip().lower() == "content-length":
            if not value.strip().isdigit():
                raise Wrong(400)
            return int(value)
    return 0


def response(status: int, value: bytes = b"") -> bytes:
    """Return an answer, after which the connection is closed."""
    head = "HTTP/1.1 %d %s\r\nContent-Length: %d\r\nConnection: close\r\n\r\n" % (status, WORDS[status], len(value))
    return head.encode() + value


def variables(environ: Mapping[str, str], place: Place, node: str, message: Mapping[str, Any]) -> Dict[str, str]:
    """Return what tells a rank of this node where Horovod's ranks meet, and which way it reaches the other nodes."""
    return frameworks.horovod_variables(
        environ,
        place,
        node=node,
        port=message["horovod_port"],
        interface=interface_towards(another_host(place, message["workers"])),
    )


def another_host(place: Place, workers: List[str]) -> str:
    """Return a node that is not this one, or this one where there is no other; `workers` are in order of the ranks."""
    return workers[-1 if place.node_rank == 0 else 0].rpartition(":")[0]


def interface_towards(host: str) -> str:
    """Return the name of the interface by which this node reaches a host in IPv4; empty where that is not known."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((host, 9))  # sends nothing: asks the kernel for the way
        except OSError:
            return ""
        address = probe.getsockname()[0]
        return next((name for name, own in _addresses(probe) if _same(own, address)), "")


def _addresses(sock: socket.socket) -> List[Tuple[str, str]]:
    """Return the interfaces that have an IPv4 address, each with its first."""
    found = []
    for _number, name in socket.if_nameindex():
        try:
            row = fcntl.ioctl(sock, GET_ADDRESS, struct.pack("256s", name.encode()[:15]))
        except OSError:
            continue  # it has none
        found.append((name, socket.inet_ntoa(row[20:24])))
    return found


def _same(own: str, address: str) -> bool:
    """All of 127.0.0.0/8 is the loopback interface's, which says 127.0.0.1 of itself."""
    return own == address or (own.startswith("127.") and address.startswith("127."))
