"""A port of the agent: takes callers in, hears them, answers them, and drops who says something wrong or nothing."""

import errno
import resource
import selectors
import socket
import time
from functools import partial
from typing import Dict

PATIENCE_SECONDS = 30.0
ACCEPTED_AT_ONCE = 64  # the agent's other duties come in between
HEARD_AT_ONCE = 1 << 16
LEAST_STRANGERS, MOST_STRANGERS = 64, 4096


class Caller:
    """One connection."""

    def __init__(self, sock: socket.socket) -> None:
        self.socket = sock
        self.heard = bytearray()
        self.unsent = bytearray()
        self.ends_when_sent = False
        self.is_open = True


class Server:
    """Strangers are callers who have not shown yet that they are ours: few, and not for long."""

    def __init__(self, selector: selectors.BaseSelector, address: str) -> None:
        self._selector = selector
        self._callers: Dict[Caller, None] = {}
        self._strangers: Dict[Caller, float] = {}  # until when each may take
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
        """Drop all; the next attempt has a port of its own."""
        for caller in list(self._callers):
            self.drop(caller)
        self._selector.unregister(self._listener)
        self._listener.close()

    def greet(self, caller: Caller) -> None:
        """Begin with a caller that has just come."""

    def hear(self, caller: Caller) -> None:
        """Take what has been heard off `caller.heard`, as far as it is whole."""
        raise NotImplementedError

    def trust(self, caller: Caller) -> None:
        """Take note that a caller is ours."""
        self._strangers.pop(caller, None)

    def say(self, caller: Caller, content: bytes) -> None:
        """Send something, now or as soon as the caller takes it."""
        is_waiting = bool(caller.unsent)
        caller.unsent += content
        if not is_waiting:
            self._send(caller)
            if caller.unsent and caller.is_open:
                both = selectors.EVENT_READ | selectors.EVENT_WRITE
                self._selector.modify(caller.socket, both, partial(self._serve, caller))

    def drop(self, caller: Caller) -> None:
        """End a connection."""
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
                    self.drop(next(iter(self._strangers)))  # the one that has kept us waiting longest
                return  # nobody is left, or no descriptor is: our own callers call again
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
        """Do what can be done for a caller now; its mistakes are its own."""
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
        if caller.ends_when_sent and not caller.unsent:
            self.drop(caller)


def _listener(address: str) -> socket.socket:
    """Listen on one address, or where it is empty on all, of both families."""
    try:
        is_dual = not address and socket.has_dualstack_ipv6()
        family = socket.AF_INET6 if is_dual else socket.AF_INET
        listener = socket.create_server((address, 0), family=family, backlog=4096, dualstack_ipv6=is_dual)
    except OSError:  # a node without IPv6
        listener = socket.create_server((address, 0), backlog=4096)
    listener.setblocking(False)
    return listener
