"""One end of a connection that carries one JSON object per line."""

import _thread
import json
import socket
from typing import Any, Dict, List

Message = Dict[str, Any]

MAX_LINE_BYTES = 64 << 20
READS_AT_ONCE = 4
STALL_BYTES = 1 << 20  # with more unsent text, the sender stops reading its own input


class Closed(Exception):
    """The other end has closed the connection."""


class Channel:
    """Send and receive messages over a stream socket without ever blocking."""

    def __init__(self, sock: socket.socket, *, max_line_bytes: int = MAX_LINE_BYTES) -> None:
        sock.setblocking(False)
        self.socket = sock
        self.max_line_bytes = max_line_bytes
        self._unread = bytearray()
        self._unsent = bytearray()
        self._lock = _thread.allocate_lock()  # a second thread sends beats

    def fileno(self) -> int:
        return self.socket.fileno()

    def send(self, kind: str, **fields: Any) -> None:
        """Queue one message, and send as much as the socket takes."""
        self.send_line(encode(kind, **fields))

    def send_line(self, line: bytes) -> None:
        """Queue a message that is already encoded, because several members get the same one."""
        self._unsent += line
        self.flush()

    def flush(self) -> None:
        """Send queued data until the socket takes no more."""
        with self._lock:
            while self._unsent:
                try:
                    sent = self.socket.send(self._unsent[: 1 << 20])
                except (BlockingIOError, InterruptedError):
                    return
                except OSError:
                    self._unsent.clear()  # the reading side will notice the closed connection
                    return
                del self._unsent[:sent]

    def send_beside(self, line: bytes) -> bool:
        """Send a line from another thread; say whether the connection is open.

        If more is queued, the line is left out: what is queued shows the same.
        """
        with self._lock:
            if self._unsent:
                return True
            try:
                sent = self.socket.send(line)
            except (BlockingIOError, InterruptedError):
                return True
            except OSError:
                return False
            self._unsent[:0] = line[sent:]
            return True

    @property
    def has_unsent(self) -> bool:
        return bool(self._unsent)

    @property
    def is_stalled(self) -> bool:
        """Say whether so much is unsent that the sender should stop reading."""
        return len(self._unsent) > STALL_BYTES

    def receive(self) -> List[Message]:
        """Return the messages that have arrived; raise Closed when the other end has closed."""
        is_open = self._read()
        *lines, rest = bytes(self._unread).split(b"\n") if b"\n" in self._unread else [bytes(self._unread)]
        self._unread = bytearray(rest)
        if len(rest) > self.max_line_bytes:
            raise Closed("a line is longer than %d bytes" % self.max_line_bytes)
        if not lines and not is_open:
            raise Closed("the connection was closed")
        return [parse(line) for line in lines]

    def _read(self) -> bool:
        for _ in range(READS_AT_ONCE):  # more data waits in the socket, which slows down the rank that writes it
            if len(self._unread) > self.max_line_bytes:
                break
            try:
                data = self.socket.recv(1 << 18)
            except (BlockingIOError, InterruptedError):
                return True
            except OSError:
                return False
            if not data:
                return False
            self._unread += data
        return True

    def close(self) -> None:
        self.socket.close()


def encode(kind: str, **fields: Any) -> bytes:
    return json.dumps({"kind": kind, **fields}, separators=(",", ":")).encode() + b"\n"


def parse(line: bytes) -> Message:
    """Parse the message of one line; raise Closed for an invalid line: the other end is not ours."""
    try:
        message = json.loads(line)
    except (ValueError, RecursionError):
        raise Closed("not a message: %r" % line[:80]) from None
    if not isinstance(message, dict) or not isinstance(message.get("kind"), str):
        raise Closed("not a message: %r" % line[:80])
    return message


def keep_alive(sock: socket.socket) -> None:
    """Let the kernel notice within about 15 s that the other machine is gone."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    for option, value in (("TCP_KEEPIDLE", 5), ("TCP_KEEPINTVL", 3), ("TCP_KEEPCNT", 3), ("TCP_USER_TIMEOUT", 15000)):
        if hasattr(socket, option):
            sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)
