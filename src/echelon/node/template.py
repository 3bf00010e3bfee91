"""The template of a pool: a warm process that forks the warm processes of runs, and runs nothing itself."""

import os
import select
import signal
import socket
import sys
from typing import Any, Callable, Dict, List, Tuple

from . import link, pool_place, processes


def lend(pool: socket.socket, report: Dict[str, Any], output: List[str], keep: Callable[[], None]) -> socket.socket:
    """Fork a warm process whenever the pool asks; return in the forks, with the socket of the agent of the run.

    `output` are the files that have what imports wrote to stdout and stderr; each fork writes it again. `keep` makes
    memory that the forks share last.
    """
    known = _files_of_modules()
    link.send(pool, {"kind": "ready", "why_not": report["why_not"]})
    keep()
    reading, writing = os.pipe()
    os.set_blocking(reading, False)
    os.set_blocking(writing, False)
    before = signal.getsignal(signal.SIGCHLD)
    signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    while True:
        readable, _, _ = select.select([pool.fileno(), reading], [], [])
        if reading in readable:
            os.read(reading, 4096)
            for _ in processes.ended():
                pass
        if pool.fileno() not in readable:
            continue
        packet = link.receive(pool)
        if packet is None:
            os._exit(0)
        message, descriptors = packet
        if any(_state(path) != state for path, state in known.items()):
            link.send(pool, {"kind": "stale"})
            os._exit(0)
        sys.stdout.flush()
        sys.stderr.flush()
        pid = os.fork()
        if pid == 0:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, before)
            for descriptor in (reading, writing, pool.detach()):
                os.close(descriptor)
            _become(message, descriptors[1:], output)
            return socket.socket(fileno=descriptors[0])
        for descriptor in descriptors:
            os.close(descriptor)
        link.send(pool, {"kind": "lent", "pid": pid})


def _become(message: Dict[str, Any], streams: List[int], output: List[str]) -> None:
    """Be the warm process of a run: its session, streams, folder, limits, environment and arguments."""
    os.setsid()
    for standard, (descriptor, path) in enumerate(zip(streams, output), 1):  # noqa: B905  # as Python 3.9 has it
        os.dup2(descriptor, standard)
        os.close(descriptor)
        with open(path, "rb") as file:
            os.write(standard, file.read())
    pool_place.put_on(message)
    argv = message["argv"]
    sys.orig_argv[:] = argv
    sys.argv[1:] = argv[3:] if argv[1] == "-m" else argv[2:]


def _files_of_modules() -> Dict[str, Tuple[int, int]]:
    """Return the time and the size of each file that a module was imported from; of a file that is gone (0, 0)."""
    files = {getattr(module, "__file__", None) for module in list(sys.modules.values())}
    return {path: _state(path) for path in files if isinstance(path, str)}


def _state(path: str) -> Tuple[int, int]:
    try:
        status = os.stat(path)
    except OSError:
        return 0, 0
    return status.st_mtime_ns, status.st_size
