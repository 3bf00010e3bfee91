"""Who connects to a supervisor and says nothing, and who connects to something that is no supervisor."""

import contextlib
import selectors
import socket
import threading
import time
from collections.abc import Iterator

import pytest

from echelon.launch import crew as crew_module
from echelon.launch.crew import AgentConnections, listen
from echelon.node.connect import ConnectError, connect

SECRET = b"s" * 32
FACTS = {
    "agent_index": 0, "node": "n0", "node_rank": 0, "first_local_rank": 0, "num_ranks": 1, "local_world_size": 1,
    "num_devices": 0, "num_cores": 1, "agent_pid": 1,
}  # fmt: skip


class Door:
    """A crew whose selector turns in a thread."""

    def __init__(self) -> None:
        self.listener = listen("127.0.0.1")
        self.address = self.listener.getsockname()
        self.selector = selectors.DefaultSelector()
        self.crew = AgentConnections(
            self.listener,
            SECRET,
            self.selector,
            on_join=lambda member: None,
            on_message=lambda member, message: None,
            on_loss=lambda member, why: None,
            on_refusal=lambda why: None,
        )
        self.is_open = True
        self.thread = threading.Thread(target=self._turn)
        self.thread.start()

    def _turn(self) -> None:
        while self.is_open:
            for key, _ in self.selector.select(0.05):
                key.data()

    def close(self) -> None:
        self.is_open = False
        self.thread.join()
        self.crew.close()


@pytest.fixture
def door() -> Iterator[Door]:
    opened = Door()
    yield opened
    opened.close()


def test_silent_connections_are_dropped(door: Door, monkeypatch: pytest.MonkeyPatch) -> None:
    """A connection that never proves itself costs a descriptor for a while, not for the whole run."""
    monkeypatch.setattr(crew_module, "STRANGER_SECONDS", 0.2)
    silent = [socket.create_connection(door.address, timeout=5) for _ in range(5)]
    for sock in silent:
        assert sock.recv(4096)  # the challenge
    time.sleep(0.3)
    connect([door.address], SECRET, FACTS, seconds=5).close()
    for sock in silent:
        assert sock.recv(4096) == b""


def test_another_service_at_the_first_address(door: Door) -> None:
    """What is no supervisor at one address does not keep an agent from the right one."""
    with socket.create_server(("127.0.0.1", 0)) as other:

        def answer() -> None:
            with contextlib.suppress(OSError):
                sock, _ = other.accept()
                sock.sendall(b"220 mail.example.org ESMTP\r\n")

        threading.Thread(target=answer, daemon=True).start()
        connect([other.getsockname(), door.address], SECRET, FACTS, seconds=5).close()


def test_wrong_secret_ends_soon(door: Door) -> None:
    """An agent with another run's secret does not knock for a minute."""
    began = time.monotonic()
    with pytest.raises(ConnectError, match="the secret or the version differs"):
        connect([door.address], b"x" * 32, FACTS, seconds=60)
    assert time.monotonic() - began < 30


def test_nobody_who_listens_is_not_waited_for() -> None:
    """Where every address refuses the supervisor is gone; one that may still be found is given its time."""
    with socket.create_server(("127.0.0.1", 0)) as closed:
        address = closed.getsockname()
    began = time.monotonic()
    with pytest.raises(ConnectError, match="refused"):
        connect([address, address], SECRET, FACTS, seconds=60, refused_seconds=0.2)
    assert time.monotonic() - began < 30  # of 60
    began = time.monotonic()
    with pytest.raises(ConnectError):
        connect([address, ("no-such-name.invalid", 1)], SECRET, FACTS, seconds=1, refused_seconds=0.1)
    assert time.monotonic() - began > 0.4  # of 1 s: pauses double up to 0.5 s, and the last is not begun
