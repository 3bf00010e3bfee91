"""The template of a pool: a warm process that forks the warm processes of runs, and runs nothing itself."""

import os
import re
import select
import signal
import socket
import sys
from typing import Any, Callable, Dict, List, Set, Tuple

from . import link, pool_place, processes, sweep


def lend(
    pool: socket.socket, why_not: str, output: List[str], began_ns: int, keep: Callable[[], None]
) -> socket.socket:
    """Fork a warm process whenever the pool asks; return in the forks, with the socket of the agent of the run.

    `output` are the files that have what imports wrote to stdout and stderr; each fork writes it again. `began_ns` is
    the time before the imports. `keep` makes memory that the forks share last.
    """
    known = _files_of_modules()
    is_old = any(mtime_ns >= began_ns for mtime_ns, _ in known.values())  # it was changed during the imports
    link.send(pool, {"kind": "ready", "why_not": why_not})
    keep()
    reading, writing = os.pipe()
    os.set_blocking(reading, False)
    os.set_blocking(writing, False)
    before = signal.getsignal(signal.SIGCHLD)
    signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    forks: Set[int] = set()
    forks_made = 0
    while True:
        readable, _, _ = select.select([pool.fileno(), reading], [], [])
        if reading in readable:
            os.read(reading, 4096)
            forks.difference_update([pid for pid, _ in processes.ended()])
            _end_orphans(forks)
        if pool.fileno() not in readable:
            continue
        packet = link.receive(pool)
        if packet is None:
            os._exit(0)
        descriptors = packet[1]
        if (is_old and forks_made) or any(_state(path) != state for path, state in known.items()):
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
            _become(pool_place.content_of(descriptors[0]), descriptors[2:], output)
            os.close(descriptors[0])
            return socket.socket(fileno=descriptors[1])
        for descriptor in descriptors:
            os.close(descriptor)
        forks.add(pid)
        forks_made += 1
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


_MADE_BY_IMPORT = re.compile(r"/tmp[a-z0-9_]{8}/[^/]+$")
"""A module that an import writes into a folder of `tempfile`, and removes at its end: PyTorch 2.6 does so."""


def _end_orphans(forks: Set[int]) -> None:
    """Kill the children that are no fork for a run: a killed fork has left them, and nobody else knows them."""
    for child in processes.descendants([os.getpid()])[os.getpid()]:
        if child.parent == os.getpid() and child.pid not in forks and child.state not in "ZX":
            sweep.send(child.pid, signal.SIGKILL)


def _files_of_modules() -> Dict[str, Tuple[int, int]]:
    """Return the time and the size of each file that a module was imported from; of a file that is gone (0, 0).

    Also those of the folders of packages: one that was missing may have been installed since.
    """
    files = {getattr(module, "__file__", None) for module in list(sys.modules.values())}
    files.update(folder for folder in sys.path if "-packages" in folder)
    return {path: _state(path) for path in files if isinstance(path, str) and not _MADE_BY_IMPORT.search(path)}


def _state(path: str) -> Tuple[int, int]:
    try:
        status = os.stat(path)
    except OSError:
        return 0, 0
    return status.st_mtime_ns, status.st_size
