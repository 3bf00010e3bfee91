"""Python, cheaply: one process has imported torch, and forks for each script or `echelon` command that tests run.

`run(words, cwd=…, environ=…)` gives what `subprocess.run([sys.executable, *words], …)` gives, for a script as for
`-m echelon …`, whose agents and ranks are forks too (warm_host). The server is this module as a program, started at the
first call and ended with its tests. How programs are really started is what tests/run, tests/slurm and others are for.
"""

import atexit
import gc
import json
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from threading import Lock

ROOT = Path(__file__).parents[1]
_server: list[str] = []
_starting = Lock()


def run(
    words: Sequence[str], *, cwd: Path, environ: Mapping[str, str] = os.environ, timeout: float = 120.0
) -> subprocess.CompletedProcess[str]:
    """Run a program with its arguments to its end; stdin is empty. Raises TimeoutError."""
    with tempfile.TemporaryDirectory() as folder, socket.socket(socket.AF_UNIX) as server:
        server.settimeout(timeout)
        server.connect(_address())
        asked = {"words": list(words), "cwd": str(cwd), "environ": dict(environ), "folder": folder}
        server.sendall(json.dumps(asked).encode() + b"\n")
        code = int(server.recv(16) or b"70")
        out, err = (Path(folder, name).read_text() for name in ("out", "err"))
    return subprocess.CompletedProcess(list(words), code, out, err)


def _address() -> str:
    with _starting:
        if not _server:
            folder = tempfile.mkdtemp(prefix="warm-")
            address = os.path.join(folder, "socket")
            listener = socket.socket(socket.AF_UNIX)
            listener.bind(address)
            listener.listen(64)
            environ = {**os.environ, "OMP_NUM_THREADS": "1"}
            command = [sys.executable, "-m", "tests.warm", str(listener.fileno())]
            process = subprocess.Popen(command, cwd=ROOT, env=environ, pass_fds=[listener.fileno()])
            atexit.register(shutil.rmtree, folder)
            atexit.register(process.kill)
            _server.append(address)
    return _server[0]


def serve(listener: socket.socket) -> None:
    """Fork for each that asks, and once more for its program, whose end the first one waits for."""
    from tests import warm_host

    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    while True:
        client, _ = listener.accept()
        if os.fork():
            client.close()
            continue
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        listener.close()
        with client, client.makefile() as lines:
            asked = json.loads(lines.readline())
            pid = os.fork()
            if not pid:
                os.chdir(asked["cwd"])
                paths = [os.path.join(asked["folder"], name) for name in ("out", "err")]
                outputs = [os.open(path, os.O_WRONLY | os.O_CREAT, 0o644) for path in paths]
                warm_host.become(asked["words"], asked["environ"], outputs)
            _end_with_client(client, pid)
            client.sendall(str(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])).encode())
        os._exit(0)


def _end_with_client(client: socket.socket, pid: int) -> None:
    """Wait for a process; end it when nobody waits for it any more."""
    process = os.pidfd_open(pid)
    if client in select.select([client, process], [], [])[0]:
        os.kill(pid, signal.SIGTERM)
        if not select.select([process], [], [], 10.0)[0]:
            os.kill(pid, signal.SIGKILL)


def main() -> None:
    """Import what every script and every scaled run imports, then serve."""
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    import torch
    import torch._dynamo
    import torch.distributed.fsdp
    import torch.utils.data

    torch.set_num_threads(1)
    gc.freeze()  # a collection in a fork would otherwise touch, and so copy, every page
    serve(socket.socket(fileno=int(sys.argv[1])))


if __name__ == "__main__":
    main()
