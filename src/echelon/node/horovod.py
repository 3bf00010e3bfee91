"""The HTTP store by which Horovod's ranks meet, instead of horovodrun's; it runs in the first agent's own loop.

Horovod's client sends no secret, but it takes an address with a path: `127.0.0.1:20000/TOKEN`. It appends `:PORT`, the
scope and the key to that (http_store.cc), so that each request begins with the token, which only our ranks know.
"""

import fcntl
import re
import selectors
import socket
import struct
from typing import Any, Dict, List, Mapping, NamedTuple, Optional, Tuple

from ..environment import frameworks
from ..environment.frameworks import Place
from .secret import is_digest
from .server import Caller, Server

LEAST_VALUE_BYTES = 1 << 12
VALUE_BYTES_OF_RANK = 256  # a rank puts 136 bytes for each of the others (gloo/transport/tcp/address.h)
KEYS_OF_RANK = 24  # an address and a host name in each of three scopes, with room for further process sets
LARGEST_HEAD_BYTES = 1 << 13
GET_ADDRESS = 0x8915  # SIOCGIFADDR of linux/sockios.h
WORDS = {200: "OK", 400: "Bad Request", 403: "Forbidden", 404: "Not Found", 405: "Method Not Allowed",
         413: "Content Too Large", 507: "Insufficient Storage"}  # fmt: skip
_SCOPE = re.compile(r"(global|local|cross)[-\w.]{0,300}", re.ASCII)
_KEY = re.compile(r"(rank_)?[0-9]{1,7}", re.ASCII)
_LENGTH = re.compile(r"[0-9]{1,12}", re.ASCII)


class Request(NamedTuple):
    """A request, parsed."""

    method: str
    key: str  # "/scope/key"
    value: bytes


class Wrong(Exception):
    """A request that is answered with a status code only."""

    def __init__(self, status: int) -> None:
        super().__init__(WORDS[status])
        self.status = status


class Limits(NamedTuple):
    """The size limits for a number of ranks."""

    value_bytes: int
    num_keys: int

    @classmethod
    def of(cls, num_ranks: int) -> "Limits":
        return cls(LEAST_VALUE_BYTES + VALUE_BYTES_OF_RANK * num_ranks, KEYS_OF_RANK * num_ranks)


class Store(Server):
    """Answer `PUT`, `GET` and `DELETE` of /scope/key like horovodrun's server, for callers that know the token."""

    def __init__(self, selector: selectors.BaseSelector, address: str, token: str, num_ranks: int) -> None:
        super().__init__(selector, address)
        self._token = token
        self._limits = Limits.of(num_ranks)
        self._kept: Dict[str, bytes] = {}

    def hear(self, caller: Caller) -> None:
        """Answer one request; the connection then ends."""
        if caller.ends_when_sent:
            raise ValueError("a second request")
        try:
            request = parse(caller.heard, self._token, self._limits.value_bytes)
            if request is None:
                return
            answer = response(200, self._carry_out(request))
        except Wrong as error:
            answer = response(error.status)
        caller.heard.clear()
        caller.ends_when_sent = True
        self.say(caller, answer)

    def _carry_out(self, request: Request) -> bytes:
        """Store, return or delete a value; raise Wrong if it is missing or does not fit."""
        if request.method == "GET":
            if request.key not in self._kept:
                raise Wrong(404)  # Horovod asks again until the value is there
            return self._kept[request.key]
        if request.method == "DELETE":
            self._kept.pop(request.key, None)
            return b""  # Horovod deletes after the meeting, so that a second hvd.init() waits for new addresses
        if request.key not in self._kept and len(self._kept) >= self._limits.num_keys:
            raise Wrong(507)
        self._kept[request.key] = request.value
        return b""


def parse(heard: bytearray, token: str, largest_value_bytes: int) -> Optional[Request]:
    """Return the request, None while it is incomplete; raise Wrong for a request that Horovod never sends."""
    end = heard.find(b"\r\n\r\n", 0, LARGEST_HEAD_BYTES)
    if end < 0:
        if len(heard) >= LARGEST_HEAD_BYTES:
            raise Wrong(400)
        return None
    first, *fields = bytes(heard[:end]).decode("latin-1").split("\r\n")
    words = first.split(" ")
    path = words[1].split("/") if len(words) == 3 else []
    if len(path) != 4 or path[0]:
        raise Wrong(400)
    if not is_digest(token.encode(), path[1].partition(":")[0].encode()):
        raise Wrong(403)
    if words[0] not in ("GET", "PUT", "DELETE"):
        raise Wrong(405)
    if not (_SCOPE.fullmatch(path[2]) and _KEY.fullmatch(path[3])):
        raise Wrong(400)
    size = _size(fields)
    if size > largest_value_bytes:
        raise Wrong(413)
    begin = end + 4
    key = "/%s/%s" % (path[2], path[3])
    return Request(words[0], key, bytes(heard[begin : begin + size])) if len(heard) >= begin + size else None


def _size(fields: List[str]) -> int:
    for field in fields:
        name, _, value = field.partition(":")
        if name.strip().lower() == "content-length":
            if not _LENGTH.fullmatch(value.strip()):
                raise Wrong(400)
            return int(value)
    return 0


def response(status: int, value: bytes = b"") -> bytes:
    """Return an answer; the connection is closed after it."""
    head = "HTTP/1.1 %d %s\r\nContent-Length: %d\r\nConnection: close\r\n\r\n" % (status, WORDS[status], len(value))
    return head.encode() + value


def variables(
    environ: Mapping[str, str], place: Place, node: str, message: Mapping[str, Any], token: str
) -> Dict[str, str]:
    """Return the variables that give a rank the store's address and its network interface."""
    return frameworks.horovod_variables(
        environ,
        place,
        node=node,
        port=message["stores"]["horovod"],
        token=token,
        interface=interface_towards(another_host(place, message["workers"])),
    )


def another_host(place: Place, workers: List[str]) -> str:
    """Return another node's host, or this node's if it is alone; `workers` are in the order of the ranks."""
    return workers[-1 if place.node_rank == 0 else 0].rpartition(":")[0]


def interface_towards(host: str) -> str:
    """Return the interface by which this node reaches a host in IPv4; empty if unknown."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((host, 9))  # sends nothing: asks the kernel for the route
        except OSError:
            return ""
        address = probe.getsockname()[0]
        return next((name for name, own in _addresses(probe) if _same(own, address)), "")


def _addresses(sock: socket.socket) -> List[Tuple[str, str]]:
    """Return the interfaces with an IPv4 address, each with its first address."""
    addresses = []
    for _number, name in socket.if_nameindex():
        try:
            row = fcntl.ioctl(sock, GET_ADDRESS, struct.pack("256s", name.encode()[:15]))
        except OSError:
            continue  # the interface has no address
        addresses.append((name, socket.inet_ntoa(row[20:24])))
    return addresses


def _same(own: str, address: str) -> bool:
    """Say whether two addresses belong to one interface: all of 127.0.0.0/8 is the loopback's."""
    return own == address or (own.startswith("127.") and address.startswith("127."))
