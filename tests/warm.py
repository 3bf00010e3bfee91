"""Python, cheaply: one process has imported torch, and forks for each script or `echelon` command that tests run.

`run(words, cwd=…, environ=…)` gives what `subprocess.run([sys.executable, *words], …)` gives, for a script as for
`-m echelon …`, whose agents and ranks are forks too (warm_host); `write_program(path)` makes a program of `echelon`
that does so. The server is this module as a program: the first call of all workers of pytest-xdist starts it, and it
ends when the tests have ended. How programs are really started is what tests/run, tests/slurm and others are for.
"""

import contextlib
import fcntl
import gc
import io
import json
import math
import os
import selectors
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from threading import Lock

MARK = "_of_tests"
"""In sys.modules, those of ours that a new interpreter would not have come after this name."""
ROOT = Path(__file__).parents[1]
PATIENCE_SECONDS = 10.0
PROGRAM = """#!{python} -IS
import os
import sys

sys.path.append({root!r})
from tests import warm

words = ["-m", "echelon", *sys.argv[1:]]
code = warm.ask({address!r}, words, cwd=os.getcwd(), environ=os.environ, outputs=[1, 2])
sys.exit(code if code >= 0 else 128 - code)
"""
_server: list[str] = []
_starting = Lock()


def run(
    words: Sequence[str], *, cwd: Path, environ: Mapping[str, str] = os.environ, timeout: float = 120.0
) -> subprocess.CompletedProcess[str]:
    """Run a program with its arguments to its end; stdin is empty. Raises TimeoutError."""
    done = run_for_bytes(words, cwd=cwd, environ=environ, timeout=timeout)
    out, err = (io.TextIOWrapper(io.BytesIO(said)).read() for said in (done.stdout, done.stderr))
    return subprocess.CompletedProcess(done.args, done.returncode, out, err)


def run_for_bytes(
    words: Sequence[str], *, cwd: Path, environ: Mapping[str, str] = os.environ, timeout: float = 120.0
) -> subprocess.CompletedProcess[bytes]:
    """Do what `run` does; what it says may be no text."""
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        outputs = [out.fileno(), err.fileno()]
        code = ask(address(), words, cwd=str(cwd), environ=environ, outputs=outputs, timeout=timeout)
        for one in (out, err):
            one.seek(0)
        return subprocess.CompletedProcess(list(words), code, out.read(), err.read())


def ask(
    address: str,
    words: Sequence[str],
    *,
    cwd: str,
    environ: Mapping[str, str],
    outputs: Sequence[int],
    timeout: float | None = None,
) -> int:
    """Have the server at an address run a program, with open files as its stdout and stderr; return its exit code."""
    told = {"words": list(words), "cwd": cwd, "environ": dict(environ), "cores": list(os.sched_getaffinity(0))}
    asked = json.dumps(told).encode()
    with socket.socket(socket.AF_UNIX) as server:
        server.settimeout(timeout)
        server.connect(address)
        socket.send_fds(server, [len(asked).to_bytes(8, "big")], outputs)
        server.sendall(asked)
        return int(server.recv(16) or b"70")


def write_program(path: Path) -> None:
    """Write a program that does what `echelon` does, as long as these tests run."""
    path.write_text(PROGRAM.format(python=sys.executable, root=str(ROOT), address=address()))
    path.chmod(0o755)


def address() -> str:
    """Return where the server is asked; the first call starts it."""
    with _starting:
        if not _server:
            born = Path(f"/proc/{_owner()}/stat").read_text().rpartition(")")[2].split()[19]  # numbers are used again
            _server.append(_started(os.path.join(tempfile.gettempdir(), f"warm-{_owner()}-{born}")))
    return _server[0]


def _owner() -> int:
    """Return the process whose end is that of the tests: all workers of pytest-xdist share one server."""
    return os.getppid() if "PYTEST_XDIST_WORKER" in os.environ else os.getpid()


def _started(folder: str) -> str:
    """Return the address of the server of this folder, which the first one that asks starts."""
    os.makedirs(folder, mode=0o700, exist_ok=True)
    address = os.path.join(folder, "socket")
    with open(os.path.join(folder, "lock"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not os.path.exists(address):
            listener = socket.socket(socket.AF_UNIX)
            listener.bind(address)
            listener.listen(64)
            environ = {**os.environ, "OMP_NUM_THREADS": "1"}
            command = [sys.executable, "-m", "tests.warm", str(listener.fileno()), folder, str(_owner())]
            subprocess.Popen(command, cwd=ROOT, env=environ, pass_fds=[listener.fileno()], start_new_session=True)
    return address


class Server:
    """Forks for each that asks, and tells the exit code, until the tests have ended."""

    def __init__(self, listener: socket.socket, owner: int) -> None:
        self._listener = listener
        self._owner = os.pidfd_open(owner)
        self._selector = selectors.DefaultSelector()
        self._selector.register(listener, selectors.EVENT_READ, self._fork)
        self._selector.register(self._owner, selectors.EVENT_READ)
        self._running: dict[int, float] = {}  # processes by their descriptors, and when each is killed

    def serve(self) -> None:
        """Return when the tests have ended; what still runs then is told to end."""
        while True:
            for key, _ in self._selector.select(self._wait_seconds()):
                if key.fd == self._owner:
                    for process in self._running:
                        signal.pidfd_send_signal(process, signal.SIGTERM)
                    return
                if self._selector.get_map().get(key.fd) == key:  # another one of these may have ended it
                    key.data()
            for process, at in self._running.items():
                if time.monotonic() > at:
                    signal.pidfd_send_signal(process, signal.SIGKILL)

    def _wait_seconds(self) -> float | None:
        return 1.0 if min(self._running.values(), default=math.inf) < math.inf else None

    def _fork(self) -> None:
        from tests import warm_host

        client, _ = self._listener.accept()
        size, outputs, _, _ = socket.recv_fds(client, 8, 2)
        if len(size) < 8:  # whoever asked has ended
            client.close()
            return
        asked = json.loads(client.recv(int.from_bytes(size, "big"), socket.MSG_WAITALL))
        pid = os.fork()
        if not pid:
            os.chdir(asked["cwd"])
            os.sched_setaffinity(0, asked["cores"])
            warm_host.become(asked["words"], asked["environ"], outputs)
        for output in outputs:
            os.close(output)  # whoever reads it waits for the program alone
        process = os.pidfd_open(pid)
        self._running[process] = math.inf
        self._selector.register(process, selectors.EVENT_READ, lambda: self._tell(client, process, pid))
        self._selector.register(client, selectors.EVENT_READ, lambda: self._end(client, process))

    def _tell(self, client: socket.socket, process: int, pid: int) -> None:
        """Tell the exit code of a process that has ended."""
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        self._selector.unregister(process)
        del self._running[process]
        os.close(process)
        if client.fileno() >= 0:
            self._selector.unregister(client)
            with client, contextlib.suppress(OSError):  # nobody may wait any more
                client.sendall(str(code).encode())

    def _end(self, client: socket.socket, process: int) -> None:
        """End a process for which nobody waits any more."""
        self._selector.unregister(client)
        client.close()
        signal.pidfd_send_signal(process, signal.SIGTERM)
        self._running[process] = time.monotonic() + PATIENCE_SECONDS


def main() -> None:
    """Import what every script and every scaled run imports, then serve."""
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    gc.disable()  # while objects are only added
    import torch
    import torch._dynamo
    import torch.distributed.fsdp
    import torch.utils.data

    torch.set_num_threads(1)
    from tests import huge_pages, packed, warm_host

    packed.import_all(Path(sys.argv[2]))
    sys.modules[MARK] = packed
    warm_host.import_commands()
    gc.enable()
    gc.freeze()  # a collection in a fork would otherwise touch, and so copy, every page
    huge_pages.collapse()
    Server(socket.socket(fileno=int(sys.argv[1])), int(sys.argv[3])).serve()
    shutil.rmtree(sys.argv[2], ignore_errors=True)


if __name__ == "__main__":
    main()
