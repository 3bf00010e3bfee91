"""Where the pool of this node listens, how an agent or a person asks it, and what a fork takes over of its agent."""

import fcntl
import hashlib
import json
import os
import re
import resource
import shutil
import socket
from contextlib import suppress
from typing import Any, Dict, List, Mapping, Optional, Sequence

from ..environment.agent_place import agent_task, job_id
from ..environment.surroundings import is_of_shell_or_step
from . import link, private, secret

VARIABLE = "ECHELON_POOL"  # another folder than /tmp
ARCHIVE, SOCKET = "node.pyz", "socket"
IMPORTS = "imports-%d.%s"
_OWN = re.compile(r"node\.pyz|socket|imports-\d+\.(out|err)")
_SHORT = "/proc/self/fd/%d/%s"  # a path in an open folder: that of a socket has 107 bytes at most
ANSWER_SECONDS = 5.0
_SCALE = "ECHELON_SCALE"


def folder(environ: Mapping[str, str]) -> str:
    """Return the folder of the pool of this user, job and node; outside of a job there is one for the machine."""
    task = agent_task(environ)
    place = "-".join([job_id(environ) or "here", *([task.node] if task is not None and task.node else [])])
    name = "echelon-pool-%d-%s" % (os.geteuid(), place)
    return os.path.join(os.path.abspath(environ.get(VARIABLE) or "/tmp"), name)


def is_of_run(name: str) -> bool:
    """Say whether a variable may differ between runs that share imports."""
    return is_mark(name) or is_of_shell_or_step(name)


def is_mark(name: str) -> bool:
    """Say whether a variable belongs to one run alone: by one of them a run finds the processes to end."""
    return name.startswith("ECHELON_") and name != _SCALE


class Taken(Exception):
    """There can be no pool in this folder."""


class Place:
    """The folder of a pool: its socket, the archive, and the lock that it holds as long as it lives.

    The folder appears with all that is in it, so that of two pools that begin at once one is refused.
    """

    def __init__(self, path: str, archive: str) -> None:
        self.path = path
        fresh = "%s.%d" % (path, os.getpid())
        os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
        os.mkdir(fresh, 0o700)
        try:
            self._lock = os.open(fresh, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            fcntl.flock(self._lock, fcntl.LOCK_EX)
            shutil.copyfile(archive, os.path.join(fresh, ARCHIVE))
            self.listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            self.listener.bind(_SHORT % (self._lock, SOCKET))
            os.chmod(os.path.join(fresh, SOCKET), 0o600)
            self.listener.listen(64)
            _appear(fresh, path)
        except BaseException:
            _remove(fresh)
            raise

    def leave(self) -> None:
        """Remove the folder, unless another pool has taken its name."""
        with suppress(OSError):
            if os.stat(self.path).st_ino == os.fstat(self._lock).st_ino:
                _remove(self.path)


def _appear(fresh: str, path: str) -> None:
    """Give the folder its name; that of a pool that was killed goes."""
    with suppress(OSError):
        os.rename(fresh, path)
        return
    if not os.path.lexists(path):
        os.rename(fresh, path)  # the error says why
        return
    _refuse_other(path)
    old = fresh + ".old"
    try:
        with suppress(FileNotFoundError):  # that pool has ended in between
            os.rename(path, old)
        _remove(old)
        os.rename(fresh, path)
    except OSError:
        raise Taken("a pool is there already") from None  # another one was as fast


def _refuse_other(path: str) -> None:
    """Refuse a folder that is not that of a pool of this user that was killed."""
    if os.path.islink(path) or not os.path.isdir(path) or not private.is_own(path):
        raise Taken("%s belongs to another user, or is no folder" % path)
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise Taken("a pool is there already") from None
    finally:
        os.close(descriptor)
    others = [name for name in os.listdir(path) if not _OWN.fullmatch(name)]
    if others:
        raise Taken("%s has %s, which is no pool's" % (path, others[0]))


def _remove(path: str) -> None:
    """Remove the folder of a pool, and nothing that is not a pool's."""
    with suppress(OSError):
        for name in os.listdir(path):
            if _OWN.fullmatch(name):
                private.remove(os.path.join(path, name))
        os.rmdir(path)


def ask(path: str, message: Dict[str, Any], descriptors: Sequence[int] = ()) -> Optional[Dict[str, Any]]:
    """Return the answer of the pool in this folder; None if there is none that answers."""
    try:
        place = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return None
    content = secret.new_file("echelon-request")
    try:
        os.write(content, json.dumps(message).encode())
        if not private.is_own(_SHORT % (place, "")):
            return None
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:
            connection.settimeout(ANSWER_SECONDS)
            connection.connect(_SHORT % (place, SOCKET))
            link.send(connection, {}, [content, *descriptors])
            answer = link.receive(connection)
    except OSError:
        return None
    finally:
        os.close(content)
        os.close(place)
    return answer[0] if answer is not None else None


def content_of(descriptor: int) -> Dict[str, Any]:
    """Return a message, which is in a file: an environment may be larger than a packet."""
    message: Dict[str, Any] = json.loads(os.pread(descriptor, os.fstat(descriptor).st_size, 0))
    return message


def surroundings() -> Dict[str, Any]:
    """Return what a fork of another process needs to be like a child of this one."""
    umask = os.umask(0o077)
    os.umask(umask)
    limits = {number: resource.getrlimit(number) for number in _LIMITS}
    return {
        "cwd": os.getcwd(),
        "umask": umask,
        "cpus": sorted(os.sched_getaffinity(0)),
        "limits": [[number, soft] for number, (soft, _) in limits.items()],
        "fixed": {
            "limits (ulimit -H)": [hard for _, hard in limits.values()],
            "priority (nice, chrt)": [os.getpriority(os.PRIO_PROCESS, 0), os.sched_getscheduler(0)],
            "group or rights": _rights(),
            "container": [os.readlink("/proc/self/ns/" + name) for name in ("mnt", "pid", "user", "net", "ipc")],
        },
    }


def _rights() -> List[str]:
    """Return the users, groups and rights of this process, as the kernel writes them."""
    wanted = ("Uid:", "Gid:", "Groups:", "NoNewPrivs:", "Seccomp:", "CapInh:", "CapPrm:", "CapEff:", "CapBnd:")
    with open("/proc/self/status", encoding="utf-8") as file:
        lines = [line.strip() for line in file if line.startswith(wanted)]
    for name in ("oom_score_adj", "personality"):
        with suppress(OSError), open("/proc/self/" + name, encoding="utf-8") as file:
            lines.append(file.read().strip())
    return lines


def why_not_here(message: Dict[str, Any]) -> str:
    """Return why a fork of this process cannot be like a child of the one that has sent its surroundings."""
    own = surroundings()["fixed"]
    differs = [name for name, value in message["fixed"].items() if value != own[name]]
    return "it has another %s than this run" % differs[0] if differs else ""


def put_on(message: Dict[str, Any]) -> None:
    """Make this process like a child of the one that has sent its surroundings."""
    os.chdir(message["cwd"])
    os.umask(message["umask"])
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


def digest(path: str) -> str:
    with open(path, "rb") as file:
        return hashlib.sha256(file.read()).hexdigest()
