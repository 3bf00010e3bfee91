"""A rank's client of the store that the first agent serves: a torch.distributed.Store that proves the run's key."""

import os
import socket
import threading
import time
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import torch.distributed as dist

from ...node.rank_store import LENGTH, packed, rank_proof, store_proof, unpacked
from ...node.secret import NONCE_BYTES, PROOF_BYTES, is_digest

CONNECT_SECONDS = 60.0
ANSWER_SECONDS = 300.0
_AHEAD_SECONDS = 1.0  # how long a value that came with another value is valid

Text = str | bytes


class _Link:
    """One thread's connection, and the values that it has read ahead."""

    def __init__(self, sock: socket.socket) -> None:
        self.socket = sock
        self.pid = os.getpid()  # a fork has no connection
        self.ahead: dict[bytes, bytes] = {}
        self.ahead_until = 0.0


class RankStore(dist.Store):  # type: ignore[name-defined, misc]
    """A store with one connection for each thread, so that no thread waits for another thread's request."""

    def __init__(self, host: str, port: int, key: bytes) -> None:
        super().__init__()
        self._address = (host, port)
        self._key = key
        self._links = threading.local()

    def set(self, key: str, value: Text) -> None:
        self._ask(b"S", [_bytes(key), _bytes(value)])

    def multi_set(self, keys: Sequence[str], values: Sequence[Text]) -> None:
        self._ask(b"S", [_bytes(one) for pair in zip(keys, values, strict=False) for one in pair])

    def append(self, key: str, value: Text) -> None:
        self._ask(b"P", [_bytes(key), _bytes(value)])

    def get(self, key: str) -> bytes:
        name = _bytes(key)
        link = self._link()
        if time.monotonic() < link.ahead_until and name in link.ahead:
            return link.ahead.pop(name)
        values = self._wait_for([name], self.timeout)
        link.ahead.pop(name, None)
        return values[0]

    def multi_get(self, keys: Sequence[str]) -> list[bytes]:
        return self._ask(b"M", [_bytes(key) for key in keys], self.timeout)

    def wait(self, keys: Sequence[str], timeout: timedelta | None = None) -> None:
        names = [_bytes(key) for key in keys]
        link = self._link()
        if len(names) == 1 and time.monotonic() < link.ahead_until and names[0] in link.ahead:
            return
        if names:
            self._wait_for(names, self.timeout if timeout is None else timeout)

    def add(self, key: str, amount: int) -> int:
        return int(self._ask(b"A", [_bytes(key), b"%d" % amount])[0])

    def compare_set(self, key: str, expected: Text, desired: Text) -> bytes:
        return self._ask(b"C", [_bytes(key), _bytes(expected), _bytes(desired)])[0]

    def delete_key(self, key: str) -> bool:
        return self._ask(b"D", [_bytes(key)])[0] == b"1"

    def check(self, keys: Sequence[str]) -> bool:
        return self._ask(b"K", [_bytes(key) for key in keys])[0] == b"1"

    def num_keys(self) -> int:
        return int(self._ask(b"N", [])[0])

    def has_extended_api(self) -> bool:
        """Say that append, multi_get and multi_set exist."""
        return True

    def clone(self) -> "RankStore":
        return self

    deleteKey, getNumKeys = delete_key, num_keys  # noqa: N815  (the names by which PyTorch's PrefixStore asks)

    def _wait_for(self, names: list[bytes], timeout: object) -> list[bytes]:
        values = self._ask(b"W", names, timeout)
        if len(names) == 1:
            link = self._link()
            link.ahead = dict(zip([names[0], *values[1::2]], values[::2], strict=False))
            link.ahead_until = time.monotonic() + _AHEAD_SECONDS
        return values

    def _ask(self, word: bytes, parts: list[bytes], timeout: Any = None) -> list[bytes]:
        link = self._link()
        link.ahead = {}
        seconds = ANSWER_SECONDS if timeout is None else max(timeout.total_seconds(), 0.001)
        link.socket.settimeout(min(seconds, 1e6))
        try:
            link.socket.sendall(packed(word, parts))
            size = LENGTH.unpack(_received(link.socket, LENGTH.size))[0]
            return unpacked(_received(link.socket, size)[1:])
        except TimeoutError:
            self._leave(link)
            name = parts[0].decode("utf-8", "replace")
            raise dist.DistStoreError(f"wait timeout after {seconds:g} s: {name} is not in the store") from None
        except OSError as error:
            self._leave(link)
            raise dist.DistStoreError(f"the agent that serves the ranks' store is gone: {error}") from None

    def _leave(self, link: _Link) -> None:
        link.socket.close()
        del self._links.link

    def _link(self) -> _Link:
        link: _Link | None = getattr(self._links, "link", None)
        if link is None or link.pid != os.getpid():
            link = self._links.link = _Link(_connected(self._address, self._key))
        return link


def _connected(address: Any, key: bytes) -> socket.socket:
    """Return a connection whose other end holds the key too; try again if the port is busy."""
    deadline, pause = time.monotonic() + CONNECT_SECONDS, 0.01
    while True:
        try:
            sock = socket.create_connection(address, timeout=CONNECT_SECONDS)
            try:
                _shake_hands(sock, key)
            except BaseException:
                sock.close()
                raise
            return sock
        except OSError as error:
            if time.monotonic() + pause > deadline:
                raise dist.DistStoreError(
                    f"the store of this run's ranks at {address[0]}:{address[1]}: {error}"
                ) from None
        time.sleep(pause)
        pause = min(pause * 2, 0.5)


def _shake_hands(sock: socket.socket, key: bytes) -> None:
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    challenge, own = _received(sock, NONCE_BYTES), os.urandom(NONCE_BYTES)
    sock.sendall(own + rank_proof(key, challenge, own))
    if not is_digest(store_proof(key, own, challenge), _received(sock, PROOF_BYTES)):
        raise ConnectionError("the process that answered does not have the key of this run")


def _received(sock: socket.socket, size: int) -> bytes:
    parts = []
    while size:
        part = sock.recv(min(size, 1 << 20))
        if not part:
            raise ConnectionError("the connection was closed")
        parts.append(part)
        size -= len(part)
    return b"".join(parts)


def _bytes(text: Text) -> bytes:
    return text.encode("utf-8", "surrogateescape") if isinstance(text, str) else bytes(text)
