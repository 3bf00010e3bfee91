"""Nobody without the run's secret gets a word in, and what is wrong with an agent is said."""

import contextlib
import json
import os
import socket
import stat
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.runs import Run

from echelon.node import PROTOCOL
from echelon.node.secret import nonce, proof

SLEEPER = "import time\ntime.sleep(60)\n"


class Stranger:
    """Something that connects to a supervisor and speaks for itself."""

    def __init__(self, run: Run) -> None:
        spec = json.loads((run.directory / "agent.json").read_text())
        self.socket = socket.create_connection(tuple(spec["addresses"][0]), timeout=10)
        self.lines = self.socket.makefile("rb")
        self.challenge: dict[str, Any] = json.loads(self.lines.readline())

    def say(self, **message: Any) -> None:
        self.socket.sendall(json.dumps(message).encode() + b"\n")

    def shout(self, noise: bytes) -> None:
        """Send something and then nothing more; the door may be shut before all of it is out."""
        with contextlib.suppress(OSError):
            self.socket.sendall(noise)
            self.socket.shutdown(socket.SHUT_WR)

    def hello(self, *, secret: bytes, version: int = PROTOCOL, agent_index: int = 0) -> None:
        ours = nonce()
        answer = proof(secret, "agent", self.challenge["nonce"] + ours)
        numbers = {"node_rank": 1, "first_local_rank": 0, "num_ranks": 1, "local_world_size": 1}
        offers = {"num_devices": 0, "num_cores": 1, "agent_pid": 1}
        times = {"asked": self.challenge["time"], "time": time.time()}
        said = {"agent_index": agent_index, "node": "elsewhere", **numbers, **offers, **times}
        self.say(kind="hello", version=version, nonce=ours, proof=answer, **said)

    def is_shown_the_door(self) -> bool:
        try:
            return self.lines.read() == b""
        except ConnectionResetError:
            return True


@pytest.fixture
def going(tmp_path: Path) -> Any:
    (tmp_path / "sleeper.py").write_text(SLEEPER)
    run = Run(tmp_path, "-n", "1", "sleeper.py")
    run.until_started(1)
    yield run
    if run.process.poll() is None:
        run.process.terminate()
    run.finish()


def test_wrong_secret(going: Run) -> None:
    """An agent that cannot prove itself is not heard, and the run goes on."""
    stranger = Stranger(going)
    stranger.hello(secret=os.urandom(32))
    assert stranger.is_shown_the_door()
    assert going.process.poll() is None


@pytest.mark.parametrize(
    "noise",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        b"{}\n",
        b'{"kind":"exit"}\n',
        b"\xff\x00\n",
        pytest.param(b"x" * 200_000, id="long"),
    ],
)
def test_noise(going: Run, noise: bytes) -> None:
    """Anything but a hello ends the connection and nothing else."""
    stranger = Stranger(going)
    stranger.shout(noise)
    assert stranger.is_shown_the_door()
    assert going.process.poll() is None


def test_many_silent_connections(going: Run) -> None:
    """Connections that say nothing do not keep the run from ending."""
    strangers = [Stranger(going) for _ in range(50)]
    going.process.terminate()
    assert going.finish()[0] == 143
    assert len(strangers) == 50


@pytest.fixture
def waiting(tmp_path: Path) -> Iterator[Run]:
    """Return a run whose agent does not come."""
    (tmp_path / "sleeper.py").write_text(SLEEPER)
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "srun").write_text("#!/bin/sh\nexec sleep 30\n")
    (tmp_path / "bin" / "srun").chmod(0o755)
    environ = {**os.environ, "PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}", "SLURM_JOB_ID": "7",
               "SLURM_JOB_NODELIST": "elsewhere"}  # fmt: skip
    run = Run(tmp_path, "-n", "1", "sleeper.py", environ=environ)
    run.until(
        lambda: (run.directory / "secret").exists() and bool((run.directory / "secret").read_text()), "the secret"
    )
    yield run
    if run.process.poll() is None:
        run.process.terminate()
        run.finish()


def test_agent_of_another_version(waiting: Run) -> None:
    """An agent of another version ends the run before a rank is started, with both versions and the repair."""
    secret = bytes.fromhex((waiting.directory / "secret").read_text())
    Stranger(waiting).hello(secret=secret, version=PROTOCOL + 1)
    code, _, err = waiting.finish()
    assert code == 2
    assert (
        f"the agent on elsewhere speaks version {PROTOCOL + 1} of the protocol, "
        f"but this supervisor speaks version {PROTOCOL}" in err
    )
    assert "install the same echelon on every node" in err
    assert waiting.left_behind(seconds=5) == []


def test_secret_is_the_users_alone(waiting: Run) -> None:
    """The secret is in a file of mode 0600 in a directory of mode 0700, and on no command line or in no environment."""
    secret = (waiting.directory / "secret").read_text()
    assert stat.S_IMODE((waiting.directory / "secret").stat().st_mode) == 0o600
    assert stat.S_IMODE(waiting.directory.stat().st_mode) == 0o700
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            seen = (entry / "cmdline").read_bytes() + (entry / "environ").read_bytes()
        except OSError:
            continue
        assert secret.encode() not in seen
    waiting.process.terminate()
    waiting.finish()
    assert not (waiting.directory / "secret").exists()


def test_secret_is_gone_once_all_agents_have_come(going: Run) -> None:
    """Nobody else may come then, so it opens nothing, and no file of the run is another user's to read."""
    assert not (going.directory / "secret").exists()
    files = [path for path in going.directory.rglob("*") if path.is_file()]
    assert {path: stat.S_IMODE(path.stat().st_mode) for path in files} == dict.fromkeys(files, 0o600)
