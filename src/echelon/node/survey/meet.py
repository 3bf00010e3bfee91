"""Test whether nodes reach each other: each listens, and connects to some of the others by name."""

import os
import selectors
import socket
import time
from typing import Dict, List, Mapping, Sequence, Tuple

CONNECT_SECONDS = 3.0
_GREETING_BYTES = 16


class Door:
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


def visit(doors: Mapping[str, Tuple[str, int]], word: str, *, own: Door, seconds: float) -> Dict[str, str]:
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
