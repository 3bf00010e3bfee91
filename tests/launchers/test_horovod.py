"""Ranks of Horovod meet at the store of echelon's first agent: its words, and the variables by which it is found."""

import json
import selectors
import socket
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.cluster import Cluster
from tests.looping import looping
from tests.run.shell import Shell

from echelon.node import horovod, server
from echelon.node.horovod import Store, parse

STAND_IN = str(Path(__file__).parent / "stand_in")
MEET_TWICE = """
import json, os
import horovod.torch as hvd

for time in range(2):  # the second hvd.init() must not find the addresses of the first
    hvd.init()
    sums = [hvd.allreduce(hvd.rank() + 1, among) for among in ("global", "local", "cross")]
    hvd.shutdown()
with open(f"rank-{hvd.rank()}-{os.environ['TORCHELASTIC_RESTART_COUNT']}.json", "x") as file:
    json.dump({"sums": sums, "port": os.environ["HOROVOD_GLOO_RENDEZVOUS_PORT"],
               "interface": os.environ["HOROVOD_GLOO_IFACE"], "cpu": os.environ["HOROVOD_CPU_OPERATIONS"]}, file)
if os.environ.get("FAIL_ONCE") and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0" and hvd.rank() == 1:
    raise SystemExit(3)
"""


TOKEN = "7f" * 32
NUM_RANKS = 4


@pytest.fixture
def store() -> Iterator[Store]:
    """Serve a store from a loop as an agent's is."""
    with selectors.DefaultSelector() as selector:
        store = Store(selector, "127.0.0.1", TOKEN, NUM_RANKS)
        with looping(selector):
            yield store
        store.close()


def say(store: Store, *parts: bytes) -> bytes:
    """Return the whole answer to a request that comes in parts; TOKEN stands for the token."""
    with socket.create_connection(("127.0.0.1", store.port), timeout=30) as sock:
        for part in parts:
            sock.sendall(part.replace(b"TOKEN", TOKEN.encode() + b":1"))
        return b"".join(iter(lambda: sock.recv(1 << 16), b""))


def test_what_is_put_is_there_until_it_is_deleted(store: Store) -> None:
    """404 before, the very bytes after, in whatever pieces they come, and 404 again once they are deleted."""
    value = bytes(range(256)) * (horovod.LEAST_VALUE_BYTES // 256)
    get = b"GET /TOKEN/global/1 HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n"
    assert say(store, get).startswith(b"HTTP/1.1 404 ")
    put = b"PUT /TOKEN/global/1 HTTP/1.1\r\ncontent-length: %d\r\n\r\n" % len(value)
    assert say(store, put[:4], put[4:-1], put[-1:] + value[:1], value[1:]).startswith(b"HTTP/1.1 200 ")
    head, _, body = say(store, get).partition(b"\r\n\r\n")
    assert (head.split(b"\r\n")[1], body) == (b"Content-Length: %d" % len(value), value)
    assert say(store, b"GET /TOKEN/local_a/1 HTTP/1.1\r\n\r\n").startswith(b"HTTP/1.1 404 ")  # another scope
    assert say(store, b"DELETE /TOKEN/global/1 HTTP/1.1\r\n\r\n").startswith(b"HTTP/1.1 200 ")
    assert say(store, get).startswith(b"HTTP/1.1 404 ")


@pytest.mark.parametrize(
    ("request_", "status"),
    [
        (b"GET /nothing HTTP/1.1\r\n\r\n", 400),
        (b"GET http://a/b HTTP/1.1\r\n\r\n", 400),
        (b"\x16\x03\x01\r\n\r\n", 400),
        (b"GET /%s/global/0 HTTP/1.1\r\n\r\n" % (b"0" * 64), 403),
        (b"GET //global/0 HTTP/1.1\r\n\r\n", 403),
        (b"GET /TOKEN/other/0 HTTP/1.1\r\n\r\n", 400),
        (b"GET /TOKEN/global/name HTTP/1.1\r\n\r\n", 400),
        (b"PUT /TOKEN/global/0 HTTP/1.1\r\nContent-Length: -1\r\n\r\n", 400),
        (b"PUT /TOKEN/global/0 HTTP/1.1\r\nContent-Length: \xb2\r\n\r\n", 400),
        (b"PUT /TOKEN/global/0 HTTP/1.1\r\nContent-Length: " + b"9" * 5000 + b"\r\n\r\n", 400),
        (b"POST /TOKEN/global/0 HTTP/1.1\r\n\r\n", 405),
        (b"PUT /TOKEN/global/0 HTTP/1.1\r\nContent-Length: 999999999\r\n\r\n", 413),
        (b"x" * horovod.LARGEST_HEAD_BYTES, 400),
    ],
)
def test_strangers_get_a_number_and_keep_nothing(store: Store, request_: bytes, status: int) -> None:
    """Whoever says something else, or knows no token, is answered, and the store goes on."""
    assert say(store, request_).startswith(b"HTTP/1.1 %d " % status)
    assert say(store, b"PUT /TOKEN/global/1 HTTP/1.1\r\nContent-Length: 1\r\n\r\nx").startswith(b"HTTP/1.1 200 ")


def test_the_store_has_an_end(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody can fill the node's memory, and those who say nothing are not kept for ever."""
    put = b"PUT /TOKEN/global/%d HTTP/1.1\r\nContent-Length: 6\r\n\r\nsixsix"
    num_keys = horovod.Limits.of(NUM_RANKS).num_keys
    for number in (*range(num_keys), 0):  # the last in place of the first
        assert say(store, put % number).startswith(b"HTTP/1.1 200 ")
    assert say(store, put % num_keys).startswith(b"HTTP/1.1 507 ")
    monkeypatch.setattr(server, "PATIENCE_SECONDS", 0.0)
    with socket.create_connection(("127.0.0.1", store.port), timeout=30) as silent:
        assert say(store, put % 1).startswith(b"HTTP/1.1 200 ")
        say(store, put % 1)
        assert silent.recv(1) == b""


def test_a_request_that_is_not_whole_yet() -> None:
    """Nothing is done before the last byte is there."""
    whole = b"PUT /%s:1/local_k/3 HTTP/1.1\r\nContent-Length: 3\r\n\r\nabc" % TOKEN.encode()
    assert [parse(bytearray(whole[:end]), TOKEN, 9) for end in range(len(whole))] == [None] * len(whole)
    assert parse(bytearray(whole), TOKEN, 9) == ("PUT", "/local_k/3", b"abc")


def found(folder: Path, attempt: int = 0) -> list[dict[str, object]]:
    return [json.loads(path.read_text()) for path in sorted(folder.glob(f"rank-*-{attempt}.json"))]


@pytest.mark.parametrize("how", ["warm", "exec"])
def test_ranks_meet_here_and_again_after_a_failure(shell: Shell, how: str) -> None:
    """Under plain `echelon run`, by loopback; a new attempt has a store of its own."""
    shell.script(MEET_TWICE)
    path = f"{STAND_IN}:{shell.environ['PYTHONPATH']}"
    done = shell.run("-n", "2", "--launch", how, "--max-restarts", "1", "train.py", PYTHONPATH=path, FAIL_ONCE="1")
    assert done.exit_code == 0, done.said
    first, second = found(shell.folder), found(shell.folder, 1)
    assert [rank["sums"] for rank in second] == [[3, 3, 1], [3, 3, 2]]
    assert {(rank["interface"], rank["cpu"]) for rank in (*first, *second)} == {("lo", "gloo")}
    assert len({rank["port"] for rank in first}) == 1
    assert {rank["port"] for rank in first} != {rank["port"] for rank in second}


def test_nodes_that_are_started_by_hand_on_one_machine(shell: Shell) -> None:
    """Ranks of two agents here are not taken for those of one node."""
    shell.script(MEET_TWICE)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    words = ["-n", "1", "--nnodes", "2", "--master-addr", "127.0.0.1", "--master-port", str(port)]
    path = f"{STAND_IN}:{shell.environ['PYTHONPATH']}"
    with shell.start(*words, "--node-rank", "1", "train.py", PYTHONPATH=path) as other:
        done = shell.run(*words, "--node-rank", "0", "train.py", PYTHONPATH=path)
        assert done.exit_code == 0, done.said
        assert other.wait(30) == 0
    assert [rank["sums"] for rank in found(shell.folder)] == [[3, 1, 3], [3, 2, 3]]


@pytest.mark.slurm
@pytest.mark.parametrize("how", ["warm", "tasks"])
def test_ranks_meet_on_two_nodes(slurm: Cluster, tmp_path: Path, how: str) -> None:
    """Two on each of two nodes: all, those of a node, and those of the same local rank find each other."""
    (tmp_path / "train.py").write_text(MEET_TWICE)
    command = [sys.executable, "-m", "echelon", "run", "-n", "2", "--launch", how, "train.py"]
    done = slurm.run(
        "salloc", "--quiet", "--nodes=2", "--ntasks-per-node=2", *command,
        check=False, cwd=tmp_path, timeout=90, env={**slurm.environ, "PYTHONPATH": STAND_IN},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert [rank["sums"] for rank in found(tmp_path)] == [[10, 3, 4], [10, 3, 6], [10, 7, 4], [10, 7, 6]]


@pytest.mark.parametrize(
    ("environ", "is_served"),
    [
        ({}, True),
        ({"HOROVOD_CONTROLLER": "Gloo"}, True),
        ({"HOROVOD_GLOO_RENDEZVOUS_ADDR": "10.0.0.1"}, False),
    ],
)
def test_a_store_is_served_where_nobody_else_does(shell: Shell, environ: dict[str, str], is_served: bool) -> None:
    """The plan says so, also for an import in a module of the script's own; one rank needs none."""
    shell.script("import horovod.torch as hvd\n", "mine.py")
    shell.script("import mine\nmine.hvd.init()\n", "t.py")
    path = f"{STAND_IN}:{shell.environ['PYTHONPATH']}"
    for number, expected in (("2", is_served), ("1", False)):
        done = shell.fork("--dry-run", "-n", number, "t.py", PYTHONPATH=path, **environ)
        assert (b"meets by gloo" in done.stdout) == expected, done.stdout


@pytest.mark.parametrize("is_built_with_gloo", [True, False])
def test_a_horovod_that_knows_only_mpi(shell: Shell, is_built_with_gloo: bool) -> None:
    """Built without gloo, as AMD's course builds it: each rank would be alone, and so it is refused."""
    shell.script("import horovod.torch as hvd\nhvd.init()\n", "t.py")
    shell.script("", "packages/horovod/__init__.py")
    text = "ELF HOROVOD_GLOO_RENDEZVOUS_ADDR" if is_built_with_gloo else "ELF MPI_Init_thread"
    shell.script(text, "packages/horovod/torch/mpi_lib_v2.so")
    path = f"{shell.environ['PYTHONPATH']}:{shell.folder}/packages"
    done = shell.fork("--dry-run", "-n", "2", "t.py", PYTHONPATH=path)
    assert (done.exit_code == 0) == is_built_with_gloo, done.said
    if not is_built_with_gloo:
        assert "t.py, line 1, imports horovod: this Horovod is built without gloo" in done.said
        assert "echelon run -- mpirun -n 2 python t.py" in done.said


def test_the_interface_that_faces_another_node(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first node looks to the last, all others to the first; what no route leads to has no interface."""
    place = horovod.Place(2, 4, 0, 2, 1, 2, "a", 1)
    workers = ["a:1", "a:2", "b:1", "b:2"]
    assert horovod.another_host(place, workers) == "a"
    assert horovod.another_host(place._replace(node_rank=0), workers) == "b"
    assert horovod.interface_towards("127.0.0.3") == "lo"
    assert horovod.interface_towards("no-such-host.invalid") == ""
