"""Own the daemons of one private cluster, and leave nothing behind when the owner's pipe closes.

Started as `python -m tests.cluster.guard FOLDER`. Each line on stdin is a JSON object, either
`{"hosts": {name: address}}` or `{"start": [program, argument …], "environ": {…}}`; each is answered by
one JSON object on stdout. `{"stop": true}` or end of file means: stop everything and remove the folder.
"""

import ctypes
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import time
from typing import Any

from . import hosts
from .processes import CLUSTER_MARK, descendants, environ, pids

PR_SET_CHILD_SUBREAPER = 36
STOP_SECONDS = 10.0


def main() -> None:
    """Serve until end of file or until the owner is gone."""
    folder = sys.argv[1]
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    # Whatever a task leaves behind becomes a child of this process, where it can be found.
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    os.chdir(folder)
    try:
        _serve(os.getppid())
    finally:
        _kill_all(folder)
        hosts.remove(os.getpid())
        shutil.rmtree(folder, ignore_errors=True)


def _serve(owner_pid: int) -> None:
    # A fork of the owner may hold the pipe open after the owner's death, so its life is checked too.
    unread = b""
    while os.getppid() == owner_pid:
        readable, _, _ = select.select([0], [], [], 0.2)
        _reap()
        if not readable:
            continue
        received = os.read(0, 1 << 16)
        if not received:
            return
        *lines, unread = (unread + received).split(b"\n")
        for line in lines:
            message = json.loads(line)
            if "stop" in message:
                return
            answer = _obey(message)
            os.write(1, json.dumps(answer).encode() + b"\n")


def _obey(message: dict[str, Any]) -> dict[str, int]:
    if "hosts" in message:
        hosts.add(message["hosts"], os.getpid())
        return {}
    name = os.path.basename(message["start"][0])
    with open(f"log/{name}.out", "ab") as output:
        process = subprocess.Popen(
            message["start"],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            env=message["environ"],
            restore_signals=True,
            start_new_session=True,
            preexec_fn=_default_signals,
        )
    # Reaped by _reap, together with the orphans that this process adopts.
    process.returncode = 0
    return {"pid": process.pid}


def _default_signals() -> None:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)


def _reap() -> bool:
    """Collect what has ended; tell whether a child is left."""
    try:
        while os.waitpid(-1, os.WNOHANG) != (0, 0):
            pass
    except ChildProcessError:
        return False
    return True


def _kill_all(folder: str) -> None:
    deadline = time.monotonic() + STOP_SECONDS
    while (_kill(folder) or _reap()) and time.monotonic() < deadline:
        time.sleep(0.01)


def _kill(folder: str) -> bool:
    found = [process.pid for process in descendants(os.getpid())]
    # Clients (salloc, a supervisor) are children of the tests, known by the mark in their environment.
    found += [pid for pid in pids() if environ(pid).get(CLUSTER_MARK) == folder and pid not in found]
    for pid in found:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue
    return bool(found)


if __name__ == "__main__":
    main()
