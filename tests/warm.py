"""Python, cheaply: one process has imported torch, and forks for each script or `echelon` command that tests run.

`run(words, cwd=…, environ=…)` gives what `subprocess.run([sys.executable, *words], …)` gives, for a script as for
`-m echelon …`, whose agents and ranks are forks too (warm_host); `write_program(path)` makes a program of `echelon`
that does so. The server is this module as a program, started at the first call and ended with its tests. How programs
are really started is what tests/run, tests/slurm and others are for.
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

MARK = "_of_tests"
"""In sys.modules, those of ours that a new interpreter would not have come after this name."""
ROOT = Path(__file__).parents[1]
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
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
        outputs = [out.fileno(), err.fileno()]
        code = ask(_address(), words, cwd=str(cwd), environ=environ, outputs=outputs, timeout=timeout)
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
    path.write_text(PROGRAM.format(python=sys.executable, root=str(ROOT), address=_address()))
    path.chmod(0o755)


def _address() -> str:
    with _starting:
        if not _server:
            folder = tempfile.mkdtemp(prefix="warm-")
            address = os.path.join(folder, "socket")
            listener = socket.socket(socket.AF_UNIX)
            listener.bind(address)
            listener.listen(64)
            environ = {**os.environ, "OMP_NUM_THREADS": "1"}
            command = [sys.executable, "-m", "tests.warm", str(listener.fileno()), folder]
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
        with client:
            size, outputs, _, _ = socket.recv_fds(client, 8, 2)
            asked = json.loads(client.recv(int.from_bytes(size, "big"), socket.MSG_WAITALL))
            pid = os.fork()
            if not pid:
                os.chdir(asked["cwd"])
                os.sched_setaffinity(0, asked["cores"])
                warm_host.become(asked["words"], asked["environ"], outputs)
            for output in outputs:
                os.close(output)  # whoever reads it waits for the program alone
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
    serve(socket.socket(fileno=int(sys.argv[1])))


if __name__ == "__main__":
    main()
