"""`python script.py`, cheaply: one process has imported torch, and forks for each script that is run as the oracle.

`run(words, cwd=…, environ=…)` gives what `subprocess.run([sys.executable, *words], …)` gives. The server is this module
as a program, started at the first call and ended with its tests.
"""

import atexit
import gc
import json
import os
import runpy
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path
from threading import Lock

ROOT = Path(__file__).parents[1]
_server: list[str] = []
_starting = Lock()


def run(
    words: Sequence[str], *, cwd: Path, environ: Mapping[str, str], timeout: float
) -> subprocess.CompletedProcess[str]:
    """Run a script with its arguments to its end; stdin is empty. Raises TimeoutError."""
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
            folder = tempfile.mkdtemp(prefix="plain-")
            address = os.path.join(folder, "socket")
            listener = socket.socket(socket.AF_UNIX)
            listener.bind(address)
            listener.listen(64)
            environ = {**os.environ, "OMP_NUM_THREADS": "1"}
            command = [sys.executable, "-m", "tests.plain", str(listener.fileno())]
            process = subprocess.Popen(command, cwd=ROOT, env=environ, pass_fds=[listener.fileno()])
            atexit.register(shutil.rmtree, folder)
            atexit.register(process.kill)
            _server.append(address)
    return _server[0]


def serve(listener: socket.socket) -> None:
    """Fork for each that asks, and once more for its script, whose end the first one waits for."""
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
                client.close()
                _become(asked)
            code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
            client.sendall(str(code).encode())
        os._exit(0)


def _become(asked: dict[str, object]) -> None:
    """Be Python with a script: its arguments, folder, variables and output."""
    code = 1
    try:
        folder, words = str(asked["folder"]), asked["words"]
        assert isinstance(words, list)
        assert isinstance(asked["environ"], dict)
        os.chdir(str(asked["cwd"]))
        os.environ.clear()
        os.environ.update(asked["environ"])
        for descriptor, name in ((1, "out"), (2, "err")):
            os.dup2(os.open(os.path.join(folder, name), os.O_WRONLY | os.O_CREAT, 0o644), descriptor)
        atexit._clear()  # what is registered is the server's
        sys.argv = words
        sys.path[0] = os.path.dirname(os.path.abspath(words[0]))
        runpy.run_path(words[0], run_name="__main__")
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:  # noqa: BLE001 (a fork must never go on as its parent)
        traceback.print_exc()
    finally:
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def main() -> None:
    """Import what every script imports, then serve."""
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    import torch
    import torch._dynamo
    import torch.utils.data

    torch.set_num_threads(1)
    gc.freeze()  # a collection in a fork would otherwise touch, and so copy, every page
    serve(socket.socket(fileno=int(sys.argv[1])))


if __name__ == "__main__":
    main()
