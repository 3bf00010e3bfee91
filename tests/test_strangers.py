"""Another user of the machine reads nothing of a run, changes nothing in it, does not end it, runs no code in it."""

import contextlib
import faulthandler
import importlib
import json
import os
import pickle
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from tests.runs import Run
from tests.strangers import UID, as_stranger, become_stranger, needs_root, open_folder, pids_of, ports_of

__all__ = ["open_folder"]
pytestmark = needs_root
LOOPBACK = "0100007F"  # 127.0.0.1 as /proc/net/tcp writes it

TRAINING = """
import os, time, torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
inputs = torch.randn(64, 4)
loader = DataLoader(TensorDataset(inputs, inputs.sum(1, keepdim=True)), batch_size=8, shuffle=True)
model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
while not os.path.exists("stop"):
    for samples, targets in loader:
        loss = nn.functional.mse_loss(model(samples), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    torch.save(model.state_dict(), "model.pt")
    print("saved", flush=True)
    time.sleep(0.05)
"""

NOISES = (
    b"PUT /global/0 HTTP/1.1\r\nContent-Length: \xb2\r\n\r\n",
    b"GET /global/0 HTTP/1.1\r\n\r\n",
    bytes(range(8)) * 8,
    b"\xff" * (1 << 16),
    b"",
)

BROKEN = 3


def shout_at(ports: list[int]) -> bool:
    """Send noise to all ports, and hold the connections for a while."""
    links = []
    for port in ports:
        for noise in NOISES:
            with contextlib.suppress(OSError):
                links.append(socket.create_connection(("127.0.0.1", port), timeout=5))
                links[-1].sendall(noise)
    time.sleep(0.5)
    return True


def stores_at(ports: list[int]) -> list[int]:
    """Return the ports at which a store of PyTorch lets this user write, in the words of its TCPStore."""

    def text(content: bytes) -> bytes:
        return struct.pack("<Q", len(content)) + content

    begin = b"\0" + struct.pack("<I", 0x3C85F7CE)  # VALIDATE
    request = begin + b"\1" + text(b"mine") + text(b"stolen") + b"\3" + text(b"mine")  # SET, GET
    stores = []
    for port in ports:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1) as link:
            link.sendall(request)
            heard = b""
            while b"stolen" not in heard and (part := link.recv(4096)):
                heard += part
            stores += [port] * (b"stolen" in heard)
    return stores


@pytest.mark.tier("all")
def test_a_scaled_run_is_not_reached(tmp_path: Path) -> None:
    """No store takes a stranger's keys, all listen on the node alone, noise ends nothing, and files are written on."""
    (tmp_path / "train.py").write_text(TRAINING)
    run = Run(tmp_path, "-n", "2", "train.py", environ={**os.environ, "OMP_NUM_THREADS": "1"})
    try:
        log = run.directory / "logs" / "attempt-0" / "rank-0.log"
        run.until(lambda: log.exists() and b"saved" in log.read_bytes(), "the first file")
        ports = ports_of(run.directory)
        assert len(ports) >= 4  # the supervisor, the ranks' store, and gloo in each rank
        assert {address for addresses in ports.values() for address in addresses} == {LOOPBACK}
        assert as_stranger(stores_at, list(ports)) == []
        assert as_stranger(shout_at, list(ports))
        saved = log.read_bytes().count(b"saved")
        run.until(lambda: log.read_bytes().count(b"saved") > saved + 2, "more files")
    finally:
        (tmp_path / "stop").touch()
        code, _, err = run.finish()
    assert code == 0, err


def test_a_store_of_pytorch_would_be_found() -> None:
    """The probe finds a store of PyTorch: the test above would fail if ranks met at such a store."""
    import torch.distributed as dist

    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    assert as_stranger(stores_at, [store.port]) == [store.port]


class Exploit:
    """Makes a file where it is unpickled."""

    def __init__(self, path: str) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return os.mkdir, (self.path,)


def hear_in_meeting() -> None:
    """Hear how rank 0 has written a file."""
    from echelon.train.files.meeting import Meeting
    from echelon.train.wire import world

    Meeting(world.read(os.environ)).follow("open", "/a", lambda: None)


def tell_in_meeting(path: str) -> None:
    """Pose as rank 0 in the group for files."""
    import torch
    import torch.distributed as dist

    group = dist.new_group(backend="gloo", timeout=timedelta(days=7))
    dist.reduce(torch.zeros(1), 0, group=group)
    content = pickle.dumps(Exploit(path))
    head = (len(content).to_bytes(8, "little") + content).ljust(1024, b"\0")
    dist.broadcast(torch.tensor(list(head), dtype=torch.uint8), 0, group=group)


def hear_random_states() -> None:
    """Follow rank 0's random numbers."""
    from echelon.train.rng import generators
    from echelon.train.wire import world

    generators.Generators(1, None).follow(world.read(os.environ))


def tell_random_states(path: str) -> None:
    """Pose as rank 0 where it tells its random numbers."""
    import torch.distributed as dist

    dist.broadcast_object_list([Exploit(path), None], 0)


def hear_lists() -> None:
    """Gather the names of a batch's samples."""
    from echelon.train import batches
    from echelon.train.wire import world

    batches._gathered_list([["a"]], world.read(os.environ), (1, 1))


def tell_lists(path: str) -> None:
    """Pose as rank 0 where names of samples are gathered."""
    import torch.distributed as dist

    dist.all_gather_object([None, None], Exploit(path))


def hear_activations() -> None:
    """Receive what the stage before gives."""
    from echelon.train.model_parallel.micro_batches import MicroBatches
    from echelon.train.wire import world

    MicroBatches(None, world.read(os.environ), [], {})._receive({}, ((), {}))  # type: ignore[arg-type]


def tell_activations(path: str) -> None:
    """Pose as the stage before."""
    import torch.distributed as dist

    dist.send_object_list([Exploit(path)], 1)


def hear_pickles() -> None:
    """Unpickle a message, as nothing of echelon does."""
    import torch.distributed as dist

    dist.broadcast_object_list([None, None], 0)


def in_pair(port: int, rank: int, act: Callable[..., None], *args: str) -> int:
    """Fork a rank of two that meet at a store of PyTorch, and call a function in it."""
    child = os.fork()
    if child:
        return child
    import torch.distributed as dist

    faulthandler.disable()  # gloo ends a process whose peer says something else
    try:
        os.environ.update(RANK=str(rank), WORLD_SIZE="2", LOCAL_RANK=str(rank), LOCAL_WORLD_SIZE="2")
        os.environ["GLOO_SOCKET_IFNAME"] = "lo"
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
        if rank == 0:
            become_stranger()
        store = dist.TCPStore("127.0.0.1", port, 2, is_master=rank == 0, timeout=timedelta(seconds=20))
        dist.init_process_group("gloo", store=store, rank=rank, world_size=2, timeout=timedelta(seconds=3))
        act(*args)
        if rank == 0:
            time.sleep(1.0)
    except (ImportError, NameError):  # the test calls what is not there any more
        os._exit(BROKEN)
    finally:
        os._exit(0)


@pytest.mark.parametrize(
    ("tell", "hear"),
    [
        (tell_in_meeting, hear_in_meeting),
        (tell_random_states, hear_random_states),
        (tell_lists, hear_lists),
        (tell_activations, hear_activations),
    ],
    ids=["files", "random numbers", "samples", "activations"],
)
def test_who_poses_as_rank_0_runs_nothing(tmp_path: Path, tell: Any, hear: Any) -> None:
    """An object that a stranger has pickled, sent in the place of a rank, is not unpickled."""
    from echelon.train import batches
    from echelon.train.model_parallel.micro_batches import MicroBatches

    assert callable(batches._gathered_list) and callable(MicroBatches._receive)  # a rank that lacks them hears nothing
    assert not _pwned(tmp_path, tell, hear).exists()


def test_rank_that_unpickles_would_be_found(tmp_path: Path) -> None:
    """The pair of ranks meets and hears: the test above would fail if echelon unpickled a message."""
    assert _pwned(tmp_path, tell_random_states, hear_pickles).exists()


def _pwned(folder: Path, tell: Any, hear: Any) -> Path:
    """Let a stranger tell an exploit to a rank; return the file that the exploit makes where it is unpickled."""
    for module in ("torch.distributed", "echelon.train.files.meeting", "echelon.train.model_parallel.micro_batches"):
        importlib.import_module(module)  # once, for both ranks are forks
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    pwned = folder / "pwned"
    children = (in_pair(port, 0, tell, str(pwned)), in_pair(port, 1, hear))
    assert BROKEN not in [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
    return pwned


IN_A_GROUP = """
import os, sys
import torch
from echelon.train.wire import groups
from echelon.train.scaling_error import ScalingError

digest = groups.digest
if os.environ["RANK"] == "2":  # stands for whoever has connected in its place
    groups.digest = lambda key, text: digest(b"guessed", text)
try:
    groups.form(torch.device("cpu"))
except ScalingError as error:
    print(str(error).splitlines()[0])
"""


def test_each_pair_of_ranks_proves_the_key(tmp_path: Path) -> None:
    """A group with somebody in it who does not hold the key is refused by each of the others, who say which it is."""
    (tmp_path / "train.py").write_text(IN_A_GROUP)
    done = subprocess.run(
        [sys.executable, "-m", "echelon", "run", "-n", "3", "--run-dir", "run", "--scale", "off", "train.py"],
        cwd=tmp_path, capture_output=True, text=True, timeout=120, env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    for rank in (0, 1):
        expected = f"the process that connected to rank {rank} as rank 2 does not have the key of this run"
        assert expected in (tmp_path / "run" / "logs" / "attempt-0" / f"rank-{rank}.log").read_text()


def test_a_secret_is_not_written_through_a_link(open_folder: Path) -> None:
    """Neither into a folder of another user's nor through a link that another user has left in an open one."""
    mine, theirs, trap = open_folder / "mine", open_folder / "theirs", open_folder / "trap"
    trap.touch(mode=0o666)
    mine.mkdir()
    mine.chmod(0o777)
    theirs.mkdir()
    for path in (theirs, trap):
        os.chown(path, UID, UID)
    for folder in (mine, theirs):
        as_stranger(lambda folder: os.symlink(trap, folder / "secret"), folder)
    codes = {}
    for folder in (mine, theirs):
        command = [sys.executable, "-m", "echelon", "run", "--run-dir", str(folder), "--", "true"]
        done = subprocess.run(command, cwd=open_folder, capture_output=True, text=True, timeout=60)
        codes[folder.name] = done.returncode
        assert trap.read_bytes() == b""
    assert codes == {"mine": 0, "theirs": 2}
    assert "echelon cannot write the run directory" in done.stderr
    assert "another user owns it" in done.stderr


def test_a_secret_does_not_outlive_the_run(tmp_path: Path) -> None:
    """Also where the supervisor and its agent are killed before all agents have come."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    (tmp_path / "train.py").write_text("")
    words = ("--nnodes", "2", "--node-rank", "0", "--master-addr", "127.0.0.1", "--master-port", str(port))
    environ = {**os.environ, "XDG_CONFIG_HOME": str(tmp_path / "config")}
    run = Run(tmp_path, "-n", "1", *words, "train.py", environ=environ)
    secret = run.directory / "secret"
    run.until(lambda: bool(run.events("agent")), "the agent of this node")
    assert secret.exists()
    agent = run.events("agent")[0]["pid"]
    os.kill(run.supervisor, signal.SIGKILL)
    os.kill(agent, signal.SIGKILL)
    run.process.communicate()
    deadline = time.monotonic() + 20
    while (secret.exists() or pids_of(run.directory)) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not secret.exists()


KEY = """
import json, os, subprocess, sys
number = os.environ["ECHELON_KEY_FD"].partition(":")[0]
key = json.loads(os.pread(int(number), 4096, 0))["key"]
seen = subprocess.run([sys.executable, "-c", "import os; print(os.listdir('/proc/self/fd'))"],
                      capture_output=True, text=True, close_fds=False).stdout
with open("rank-" + os.environ["RANK"], "w") as file:
    json.dump({"key": key, "is_inherited": repr(number) in seen}, file)
import time
while not os.path.exists("stop"):
    time.sleep(0.02)
"""


@pytest.mark.parametrize("how", ["warm", "exec"])
def test_the_ranks_key_is_in_no_environment(tmp_path: Path, how: str) -> None:
    """Ranks have it in a file without a name; no command line, environment or child of the script has it."""
    (tmp_path / "train.py").write_text(KEY)
    run = Run(tmp_path, "-n", "2", "--launch", how, "train.py")
    try:
        told = [tmp_path / f"rank-{rank}" for rank in range(2)]
        run.until(lambda: all(path.exists() and path.read_text().endswith("}") for path in told), "both ranks")
        first, second = (json.loads(path.read_text()) for path in told)
        assert first == second
        assert not first["is_inherited"]
        for pid in pids_of(run.directory):
            seen = Path(f"/proc/{pid}/cmdline").read_bytes() + Path(f"/proc/{pid}/environ").read_bytes()
            assert first["key"].encode() not in seen
        assert not [
            path for path in run.directory.rglob("*") if path.is_file() and first["key"] in path.read_text("latin")
        ]
    finally:
        (tmp_path / "stop").touch()
        run.finish()


def test_caches_of_a_plain_script_are_the_users_own(open_folder: Path) -> None:
    """Where another user has made the folder first, or a link of its name, the variable is not set."""
    from echelon.scheduler.slurm import plain
    from echelon.spec.booking import Variable

    os.chmod(open_folder, 0o777)
    names = ("MINE", "THEIRS", "LINK")
    variables = [Variable(name=name, value=f"{open_folder}/{name}", why="a cache", is_folder=True) for name in names]
    as_stranger(lambda: os.mkdir(open_folder / "THEIRS", 0o777))
    (open_folder / "other").mkdir()
    as_stranger(lambda: os.symlink(open_folder / "other", open_folder / "LINK"))
    text = "\n".join([*plain._settings(variables, 0), "env"])
    done = subprocess.run(["bash", "-c", text], capture_output=True, text=True, check=True)
    set_names = {line.partition("=")[0] for line in done.stdout.splitlines()} & set(names)
    assert set_names == {"MINE"}
    assert (open_folder / "MINE").stat().st_mode & 0o777 == 0o700
