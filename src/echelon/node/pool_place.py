"""Where the pool of this node listens, and how an agent or a person asks it."""

import hashlib
import os
import resource
import shutil
import socket
from contextlib import suppress
from typing import Any, Dict, List, Mapping, Optional, Sequence

from ..environment.agent_place import agent_task, job_id
from ..environment.surroundings import is_of_shell_or_step
from . import link, private

VARIABLE = "ECHELON_POOL"  # another folder
ARCHIVE, SOCKET = "node.pyz", "socket"
ANSWER_SECONDS = 2.0
_SCALE = "ECHELON_SCALE"


def folder(environ: Mapping[str, str]) -> str:
    """Return the folder of the pool of this user, job and node; outside of a job there is one for the machine."""
    task = agent_task(environ)
    place = "-".join([job_id(environ) or "here", *([task.node] if task is not None and task.node else [])])
    return environ.get(VARIABLE) or "/tmp/echelon-pool-%d-%s" % (os.geteuid(), place)


def is_of_run(name: str) -> bool:
    """Say whether a variable may differ between runs that share imports: it is read after the fork alone."""
    return (name.startswith("ECHELON_") and name != _SCALE) or is_of_shell_or_step(name)


class Taken(Exception):
    """There can be no pool in this folder: a pool or another user is there."""


def take(path: str, archive: str) -> socket.socket:
    """Make the folder, with a copy of the archive; return the socket at which the pool is asked. Raises Taken.

    The folder appears with all that is in it, so that of two pools that begin at once one is refused.
    """
    fresh = "%s.%d" % (path, os.getpid())
    os.mkdir(fresh, 0o700)
    try:
        shutil.copyfile(archive, os.path.join(fresh, ARCHIVE))
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        listener.bind(os.path.join(fresh, SOCKET))
        os.chmod(os.path.join(fresh, SOCKET), 0o600)
        listener.listen(64)
        _appear(fresh, path)
    except BaseException:
        private.remove_folder(fresh)
        raise
    return listener


def _appear(fresh: str, path: str) -> None:
    """Give the folder its name; that of a pool that was killed goes."""
    try:
        os.rename(fresh, path)
        return
    except OSError:
        if not os.path.lexists(path):
            raise
    if os.path.islink(path) or not private.is_own(path):
        raise Taken("%s belongs to another user" % path)
    if ask(path, {"kind": "status"}) is not None:
        raise Taken("a pool is there already")
    old = fresh + ".old"
    try:
        with suppress(FileNotFoundError):  # that pool has ended in between
            os.rename(path, old)
        private.remove_folder(old)
        os.rename(fresh, path)
    except OSError:
        raise Taken("a pool is there already") from None  # another one was as fast


def ask(path: str, message: Dict[str, Any], descriptors: Sequence[int] = ()) -> Optional[Dict[str, Any]]:
    """Return the answer of the pool in this folder; None if there is none that answers."""
    try:
        if os.path.islink(path) or not private.is_own(path):
            return None
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:
            connection.settimeout(ANSWER_SECONDS)
            connection.connect(os.path.join(path, SOCKET))
            link.send(connection, message, descriptors)
            answer = link.receive(connection)
    except OSError:
        return None
    return answer[0] if answer is not None else None


def surroundings() -> Dict[str, Any]:
    """Return what a fork of another process needs to be like a child of this one."""
    umask = os.umask(0o077)
    os.umask(umask)
    limits = {number: resource.getrlimit(number) for number in _LIMITS}
    return {
        "cwd": os.getcwd(),
        "umask": umask,
        "niceness": os.getpriority(os.PRIO_PROCESS, 0),
        "cpus": sorted(os.sched_getaffinity(0)),
        "limits": [[number, soft] for number, (soft, _) in limits.items()],
        "hard_limits": [hard for _, hard in limits.values()],
        "namespaces": namespaces(),
    }


def why_not_here(message: Dict[str, Any]) -> str:
    """Return why a fork of this process cannot be like a child of the one that has sent its surroundings."""
    own = surroundings()
    if message["namespaces"] != own["namespaces"]:
        return "it is outside of this container"
    if message["hard_limits"] != own["hard_limits"]:
        return "its limits (ulimit -H) are others"
    if message["niceness"] < own["niceness"]:
        return "it has a lower priority (nice)"
    return ""


def put_on(message: Dict[str, Any]) -> None:
    """Make this process like a child of the one that has sent its surroundings."""
    os.chdir(message["cwd"])
    os.umask(message["umask"])
    os.setpriority(os.PRIO_PROCESS, 0, message["niceness"])
    os.sched_setaffinity(0, message["cpus"])
    for number, soft in message["limits"]:
        resource.setrlimit(number, (soft, resource.getrlimit(number)[1]))
    os.environ.clear()
    os.environ.update(message["environ"])


_LIMITS: List[int] = [
    getattr(resource, name)
    for name in ("RLIMIT_AS", "RLIMIT_CORE", "RLIMIT_CPU", "RLIMIT_DATA", "RLIMIT_FSIZE", "RLIMIT_MEMLOCK",
                 "RLIMIT_NOFILE", "RLIMIT_NPROC", "RLIMIT_STACK")
    if hasattr(resource, name)
]  # fmt: skip


def namespaces() -> List[str]:
    """Return which files and processes this process sees: a container has others."""
    return [os.readlink("/proc/self/ns/" + name) for name in ("mnt", "pid")]


def digest(path: str) -> str:
    """Return a number of a file's content as text."""
    with open(path, "rb") as file:
        return hashlib.sha256(file.read()).hexdigest()
