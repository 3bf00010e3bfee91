"""The store of our groups: it does what PyTorch's does, for ranks that hold the key, and for nobody else."""

import contextlib
import os
import resource
import selectors
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import pytest
import torch.distributed as dist
from tests.looping import looping

from echelon.node import rank_store, secret, server, stores
from echelon.node.rank_store import LENGTH, packed, rank_proof, store_proof
from echelon.node.secret import NONCE_BYTES, PROOF_BYTES
from echelon.train.wire.store import RankStore

KEY = b"k" * 32


@contextlib.contextmanager
def serving_keys() -> Iterator[int]:
    """Serve a store from a loop as an agent's is; give its port."""
    with selectors.DefaultSelector() as selector:
        store = rank_store.RankStore(selector, "127.0.0.1", KEY)
        with looping(selector):
            yield store.port
        store.close()


@pytest.fixture
def port() -> Iterator[int]:
    with serving_keys() as port:
        yield port


def connected(port: int) -> Any:
    return RankStore("127.0.0.1", port, KEY)


def play(store: Any) -> list[Any]:
    """Use a store in every way; return all that it answers."""
    store.set("a", "1")
    store.set("raw", b"\xff\x00")
    said: list[Any] = [store.get("a"), store.get("raw"), store.add("n", 2), store.add("n", -5), store.get("n")]
    said += [store.compare_set("a", "2", "3"), store.compare_set("a", "1", "3"), store.get("a")]
    said += [store.compare_set("new", "x", "y"), store.compare_set("new", "", "y"), store.get("new")]
    said += [store.check(["a", "n"]), store.check(["a", "nothing"]), store.delete_key("a"), store.delete_key("a")]
    said += [store.check(["a"])]
    store.append("log", "one,")
    store.append("log", "two")
    store.multi_set(["x/0", "x/1", "x/2"], ["0", "1", "2"])
    store.wait(["x/0", "x/1"])
    store.wait(["x/0"], timedelta(seconds=9))
    said += [store.get("log"), store.multi_get(["x/2", "x/0"]), *[store.get(f"x/{number}") for number in range(3)]]
    store.wait(["x/0"])
    store.set("x/1", "changed")
    said += [store.get("x/1"), store.get("x/0")]
    prefixed = dist.PrefixStore("p", store)
    prefixed.set("k", "v")
    return [*said, prefixed.get("k"), store.get("p/k"), store.has_extended_api()]


def test_it_answers_as_torch_does(port: int) -> None:
    """Each operation of torch.distributed.Store, in Python and under a PrefixStore, gives what TCPStore gives."""
    theirs = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    assert play(connected(port)) == play(theirs)


def test_who_waits_hears_of_it_when_it_is_there(port: int) -> None:
    """One thread waits while another, of the same rank, sets what it waits for."""
    store = connected(port)
    with ThreadPoolExecutor(2) as pool:
        value, both = pool.submit(store.get, "late"), pool.submit(store.multi_get, ["late", "later"])
        time.sleep(0.05)
        store.set("late", "here")
        assert value.result(30) == b"here"
        store.set("later", "too")
        assert both.result(30) == [b"here", b"too"]


def test_a_wait_has_an_end(port: int) -> None:
    """PyTorch's own error names the key, and the store is of use afterwards."""
    store = connected(port)
    with pytest.raises(dist.DistStoreError, match=r"wait timeout after 0\.05 s: never is not in the store"):
        store.wait(["never"], timedelta(seconds=0.05))
    store.set_timeout(timedelta(seconds=0.05))
    with pytest.raises(dist.DistStoreError, match="never"):
        store.get("never")
    store.set("a", "1")
    assert store.get("a") == b"1"


def test_a_store_that_ends_is_an_error(port: int) -> None:
    """Who waits for a store that is gone is told."""
    with serving_keys() as other:
        store = connected(other)
        store.set("a", "1")
    with pytest.raises(dist.DistStoreError, match="is gone"):
        store.get("b")


def test_large_values_and_many_ranks(port: int) -> None:
    """Values larger than what a socket takes at once, and 300 connections that wait for one key, in one thread."""
    large = os.urandom(1 << 22)
    store = connected(port)
    store.set("large", large)
    assert store.get("large") == large
    links = [entered(port) for _ in range(300)]
    for link in links:
        link.sendall(packed(b"W", [b"start"]))
    store.set("start", "now")
    for link in links:
        answer = link.recv(LENGTH.size + 1 + LENGTH.size + 3, socket.MSG_WAITALL)
        assert answer.endswith(b"now")
        link.close()


def entered(port: int) -> socket.socket:
    """Return a connection that has proved the key."""
    link = socket.create_connection(("127.0.0.1", port), timeout=30)
    challenge, own = link.recv(NONCE_BYTES, socket.MSG_WAITALL), os.urandom(NONCE_BYTES)
    link.sendall(own + rank_proof(KEY, challenge, own))
    assert link.recv(PROOF_BYTES, socket.MSG_WAITALL) == store_proof(KEY, own, challenge)
    return link


STRANGERS = [
    b"GET / HTTP/1.1\r\n\r\n" + bytes(99),
    bytes(NONCE_BYTES + PROOF_BYTES),
    packed(b"S", [b"a", b"stolen"]) + bytes(99),
    b"\xff" * 5000,
]


@pytest.mark.parametrize("noise", STRANGERS, ids=["http", "no-proof", "a-request", "noise"])
def test_strangers_hear_a_challenge_and_no_more(port: int, noise: bytes) -> None:
    """Who does not hold the key is dropped, has set nothing, and the store goes on."""
    store = connected(port)
    store.set("a", "1")
    with socket.create_connection(("127.0.0.1", port), timeout=30) as stranger:
        assert len(stranger.recv(NONCE_BYTES, socket.MSG_WAITALL)) == NONCE_BYTES
        stranger.sendall(noise)
        with contextlib.suppress(ConnectionResetError):
            assert stranger.recv(1) == b""
    assert store.get("a") == b"1"


@pytest.mark.parametrize("request_", [b"?", b"S", b"A\x01\x00\x00\x00a", b"W\xff\xff\xff\xff", b""])
def test_a_mistake_drops_its_caller_alone(port: int, request_: bytes) -> None:
    """Also of a rank of our own: the others, and the agent, go on."""
    store = connected(port)
    store.set("a", "1")
    link = entered(port)
    link.sendall(LENGTH.pack(len(request_)) + request_)
    if request_ != b"S":  # which sets nothing
        with contextlib.suppress(ConnectionResetError):
            assert link.recv(1) == b""
    link.close()
    assert store.get("a") == b"1"


def test_strangers_cannot_take_all_descriptors(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The oldest that has not proved anything goes, those that have stay, and a new rank comes in."""
    first = connected(port)
    first.set("a", "1")
    monkeypatch.setattr(server, "LEAST_STRANGERS", 4)
    monkeypatch.setattr(server.resource, "getrlimit", lambda _: (8, 8))
    with serving_keys() as small:
        ours = connected(small)
        ours.set("a", "1")
        strangers = [socket.create_connection(("127.0.0.1", small), timeout=30) for _ in range(12)]
        assert connected(small).get("a") == b"1"
        assert ours.get("a") == b"1"
        assert len(strangers[0].recv(99)) == NONCE_BYTES
        assert strangers[0].recv(1) == b""
        for stranger in strangers:
            stranger.close()


def test_a_stranger_that_says_nothing_goes(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Once its time is over, the next caller takes its place; one that has proved the key may be silent."""
    ours = connected(port)
    ours.set("a", "1")
    monkeypatch.setattr(server, "PATIENCE_SECONDS", 0.0)
    with socket.create_connection(("127.0.0.1", port), timeout=30) as silent:
        assert len(silent.recv(NONCE_BYTES, socket.MSG_WAITALL)) == NONCE_BYTES
        assert connected(port).get("a") == b"1"
        assert silent.recv(1) == b""
    assert ours.get("a") == b"1"


def test_the_limit_on_open_files_is_raised_for_many_ranks() -> None:
    """The first agent of a thousand ranks can take a connection from each."""
    child = os.fork()
    if not child:
        code = 1
        try:
            _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
            resource.setrlimit(resource.RLIMIT_NOFILE, (256, hard))
            stores._allow_connections(100)
            code = int(resource.getrlimit(resource.RLIMIT_NOFILE)[0] < min(hard, 700))
        finally:
            os._exit(code)
    assert os.waitpid(child, 0)[1] == 0


def test_a_server_that_does_not_hold_the_key_is_not_believed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stranger who has taken the port gets nothing set, and the rank says why."""
    monkeypatch.setattr("echelon.train.wire.store.CONNECT_SECONDS", 0.3)
    with socket.create_server(("127.0.0.1", 0)) as stranger:

        def answer() -> None:
            with contextlib.suppress(OSError):
                while True:
                    link, _ = stranger.accept()
                    link.sendall(bytes(NONCE_BYTES + PROOF_BYTES))

        threading.Thread(target=answer, daemon=True).start()
        with pytest.raises(dist.DistStoreError, match="does not have the key of this run"):
            connected(stranger.getsockname()[1]).set("a", "1")
        stranger.shutdown(socket.SHUT_RDWR)


def test_the_key_is_in_a_file_without_a_name() -> None:
    """It is read once, from the very file; a descriptor of another file with its number is left alone."""
    entrance = secret.Entrance(KEY, "127.0.0.1", 1)
    descriptor = secret.write(entrance)
    assert not os.get_inheritable(descriptor)
    environ = dict(secret.variable(descriptor))
    assert KEY.hex() not in str(environ)
    copy = dict(environ)
    assert secret.take(environ) == entrance
    assert environ == {}
    others = {os.open(os.devnull, os.O_RDONLY), descriptor}
    os.dup2(min(others), max(others))
    assert secret.take(copy) is None
    for other in others:
        os.close(other)
    for text in ("", "a:1", "²:1", "1", "999999:1", "9" * 5000 + ":1"):
        assert secret.take({secret.VARIABLE: text}) is None
