"""A listening port of the agent: accept callers, answer requests, drop invalid callers; find ports that stay free."""

import errno
import resource
import selectors
import socket
import time
from functools import partial
from typing import Dict, List

PATIENCE_SECONDS = 30.0
ACCEPTED_AT_ONCE = 64  # leaves time for the agent's other duties
HEARD_AT_ONCE = 1 << 16
LEAST_STRANGERS, MOST_STRANGERS = 64, 4096


class Caller:
    """A connection."""

    def __init__(self, sock: socket.socket) -> None:
        self.socket = sock
        self.heard = bytearray()
        self.unsent = bytearray()
        self.is_open = True


class Server:
    """A server whose strangers, callers without a proof, are limited in number and time."""

    def __init__(self, selector: selectors.BaseSelector, address: str) -> None:
        self._selector = selector
        self._callers: Dict[Caller, None] = {}
        self._strangers: Dict[Caller, float] = {}  # stranger → its deadline
        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        # the ranks' pipes need descriptors too
        self._most_strangers = MOST_STRANGERS if soft < 0 else min(MOST_STRANGERS, max(LEAST_STRANGERS, soft // 4))
        self._listener = _listener(address)
        selector.register(self._listener, selectors.EVENT_READ, self._accept)

    @property
    def port(self) -> int:
        port: int = self._listener.getsockname()[1]
        return port

    def close(self) -> None:
        """Drop all callers and close the port; the next attempt has its own."""
        for caller in list(self._callers):
            self.drop(caller)
        self._selector.unregister(self._listener)
        self._listener.close()

    def greet(self, caller: Caller) -> None:
        """Greet a new caller."""

    def hear(self, caller: Caller) -> None:
        """Consume complete requests from `caller.heard`."""
        raise NotImplementedError

    def trust(self, caller: Caller) -> None:
        self._strangers.pop(caller, None)

    def say(self, caller: Caller, content: bytes) -> None:
        """Send data now, or as soon as the socket takes it."""
        is_waiting = bool(caller.unsent)
        caller.unsent += content
        if not is_waiting:
            self._send(caller)
            if caller.unsent and caller.is_open:
                both = selectors.EVENT_READ | selectors.EVENT_WRITE
                self._selector.modify(caller.socket, both, partial(self._serve, caller))

    def drop(self, caller: Caller) -> None:
        if caller.is_open:
            caller.is_open = False
            del self._callers[caller]
            self._strangers.pop(caller, None)
            self._selector.unregister(caller.socket)
            caller.socket.close()

    def _accept(self) -> None:
        now = time.monotonic()
        for silent in [caller for caller, until in self._strangers.items() if until < now]:
            self.drop(silent)
        for _ in range(ACCEPTED_AT_ONCE):
            try:
                sock, _address = self._listener.accept()
            except OSError as error:
                if error.errno == errno.EMFILE and self._strangers:
                    self.drop(next(iter(self._strangers)))  # the stranger that has been silent for the longest time
                return  # no caller or no descriptor is left; our own callers connect again
            sock.setblocking(False)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if len(self._strangers) >= self._most_strangers:
                self.drop(next(iter(self._strangers)))
            caller = Caller(sock)
            self._callers[caller] = None
            self._strangers[caller] = time.monotonic() + PATIENCE_SECONDS
            self._selector.register(sock, selectors.EVENT_READ, partial(self._serve, caller))
            self.greet(caller)

    def _serve(self, caller: Caller) -> None:
        """Read and write as far as a caller allows now; its errors affect only itself."""
        if caller.unsent:
            self._send(caller)
            if not caller.unsent and caller.is_open:
                self._selector.modify(caller.socket, selectors.EVENT_READ, partial(self._serve, caller))
        if not caller.is_open:
            return
        try:
            data = caller.socket.recv(HEARD_AT_ONCE)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self.drop(caller)
            return
        caller.heard += data
        try:
            self.hear(caller)
        except Exception:  # noqa: BLE001  # whatever a stranger's bytes do, the agent and the run go on
            self.drop(caller)

    def _send(self, caller: Caller) -> None:
        try:
            sent = caller.socket.send(caller.unsent)
        except BlockingIOError:
            return
        except OSError:
            self.drop(caller)
            return
        del caller.unsent[:sent]


def _listener(address: str) -> socket.socket:
    """Listen on one address; without an address, on all addresses of both families."""
    try:
        is_dual = not address and socket.has_dualstack_ipv6()
        family = socket.AF_INET6 if is_dual else socket.AF_INET
        listener = socket.create_server((address, 0), family=family, backlog=4096, dualstack_ipv6=is_dual)
    except OSError:  # a node without IPv6
        listener = socket.create_server((address, 0), backlog=4096)
    listener.setblocking(False)
    return listener


LOWEST_PORT = 20000


def _ephemeral_range() -> "tuple[int, int]":
    try:
        with open("/proc/sys/net/ipv4/ip_local_port_range") as file:
            low, high = file.read().split()
        return int(low), int(high)
    except (OSError, ValueError):
        return 32768, 60999  # the default of Linux


def _is_free(port: int) -> bool:
    for family in (socket.AF_INET, socket.AF_INET6):
        try:
            with socket.socket(family, socket.SOCK_STREAM) as sock:
                if family == socket.AF_INET6:
                    sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
                sock.bind(("", port))
        except OSError as error:
            if error.errno in (97, 99):  # this node has no IPv6
                continue
            return False
    return True


def free_ports(count: int) -> List[int]:
    """Return free ports outside the range from which the kernel serves connect() and bind(0).

    An outgoing connection could take a port of that range between this check and the rank's bind.
    """
    import random  # only one agent of a run needs it in its first second

    low, high = _ephemeral_range()
    candidates = [*range(LOWEST_PORT, low), *range(high + 1, 65536)] or list(range(LOWEST_PORT, 65536))
    ports: List[int] = []
    for port in random.sample(candidates, min(len(candidates), count + 2000)):
        if len(ports) == count:
            break
        if _is_free(port):
            ports.append(port)
    return ports
