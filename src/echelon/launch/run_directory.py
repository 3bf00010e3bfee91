"""The one directory of a run, readable by the user only, and temporary folders that all nodes see."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import re
import shutil
import signal
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict
from typing import IO, Any

from echelon.errors import RunError, UsageError
from echelon.node import private
from echelon.orders.checkpoint import SUBFOLDER
from echelon.spec import Plan

RESERVE = "reserve"
_RESERVE_BYTES = 1 << 16  # a secret, agent.json, report.json, and the folders and first blocks of new logs
MOST_FILES = 5000
_OWNER = ".owner"
_FULL = (errno.ENOSPC, errno.EDQUOT)
FORMAT = 1  # the version of plan.json, events.jsonl and report.json


class RunDirectory:
    """The directory of one run, locked while its supervisor or its keeper lives."""

    def __init__(self, path: str, events: IO[bytes]) -> None:
        self.path = path
        self.problem = ""
        """The reason why a file could not be written; a full disk must not end the training."""
        self._events = events

    @classmethod
    def create(cls, plan: Plan) -> RunDirectory:
        """Create the directory and take its lock; raise UsageError if that fails."""
        path = plan.run_directory
        _refuse_if_used(path)
        try:
            os.makedirs(path, mode=0o700, exist_ok=True)
            os.chmod(path, 0o700)
            if not private.is_own(path):
                raise PermissionError(errno.EPERM, "another user owns it")
            os.makedirs(os.path.join(path, "logs"), mode=0o700, exist_ok=True)
            events = open(os.path.join(path, "events.jsonl"), "ab", buffering=0, opener=_own_file)  # noqa: SIM115
        except OSError as error:
            raise unwritable(path, error) from None
        try:
            fcntl.flock(events, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UsageError(
                f"the run directory {path} belongs to a run that is still running",
                hint=f"choose another directory: echelon run --run-dir {path}-2 …",
            ) from None
        except OSError:
            pass  # Lustre mounted without flock: the name is unique unless a user chose it
        directory = cls(path, events)
        directory.write_json("plan.json", {"format": FORMAT, **plan_fields(plan)})
        with suppress(OSError):  # then a full disk ends the run as soon as an agent or a supervisor is lost
            private.write(directory.file(RESERVE), os.urandom(_RESERVE_BYTES))  # no file system makes this smaller
        return directory

    def file(self, *names: str) -> str:
        return os.path.join(self.path, *names)

    def logs(self, attempt: int) -> str:
        return self.file("logs", f"attempt-{attempt}")

    def insist(self, write: Callable[[], None]) -> None:
        """Write what the run cannot go on without: on a full disk into the space that was reserved for it."""
        try:
            write()
        except OSError as error:
            if error.errno not in _FULL or not os.path.exists(self.file(RESERVE)):
                raise
            self.remove(RESERVE)
            write()

    def write_json(self, name: str, value: dict[str, Any]) -> None:
        """Write a JSON file of the run; keep a failure for the report."""
        content = json.dumps(value, indent=1).encode() + b"\n"
        try:
            self.insist(lambda: private.write(self.file(name), content))
        except OSError as error:
            self.problem = self.problem or f"{name}: {error.strerror}"

    def write_text(self, name: str, text: str) -> str:
        """Write a text file of the run; return its path, and keep a failure for the report."""
        try:
            private.write(self.file(name), text.encode("utf-8", "surrogateescape"))
        except OSError as error:
            self.problem = self.problem or f"{name}: {error.strerror}"
        return self.file(name)

    def replace_text(self, name: str, text: str) -> None:
        """Write a text file anew, so that a reader finds the old one or the new one; keep a failure for the report."""
        try:
            private.write(self.file(f"{name}.new"), text.encode())
            os.replace(self.file(f"{name}.new"), self.file(name))
        except OSError as error:
            self.problem = self.problem or f"{name}: {error.strerror}"

    def event(self, kind: str, **fields: object) -> None:
        """Append one event; the supervisor is the only writer, and its keeper once it is gone."""
        line = json.dumps({"time": round(time.time(), 3), "event": kind, **fields}) + "\n"
        try:
            self._events.write(line.encode())
        except OSError as error:
            self.problem = self.problem or f"events.jsonl: {error.strerror}"

    def append(self, name: str, text: str) -> None:
        """Append to a file of the run; keep a failure for the report."""
        try:
            with open(self.file(name), "ab", buffering=0, opener=_own_file) as file:
                file.write(text.encode())
        except OSError as error:
            self.problem = self.problem or f"{name}: {error.strerror}"

    def disk_use(self) -> dict[str, int]:
        """Return the bytes of the run's files and those that its file system has left; empty if it does not tell.

        A directory with too many files is not looked through: each is a question to the file system.
        """
        used = number = 0
        try:
            for folder, _, names in os.walk(self.path):
                number += len(names)
                if number > MOST_FILES:
                    return {}
                used += sum(os.lstat(os.path.join(folder, name)).st_blocks * 512 for name in names)
            disk = os.statvfs(self.path)
        except OSError:
            return {}  # a file was removed meanwhile
        return {"run_bytes": used, "disk_free_bytes": disk.f_bavail * disk.f_frsize}

    def newest_step(self, folder: str = "") -> int:
        """Return the step of the newest published checkpoint; -1 if there is none.

        `folder` has the checkpoints; without it, the run's own folder does.
        """
        return newest_step(folder or self.file(SUBFOLDER))

    def remove(self, name: str) -> None:
        """Remove a file that the finished run does not need."""
        private.remove(self.file(name))

    def unlock(self) -> None:
        """Let others see that nobody goes on with this run."""
        with suppress(OSError):
            fcntl.flock(self._events, fcntl.LOCK_UN)

    def close(self) -> None:
        self.remove(RESERVE)
        self._events.close()


def newest_step(folder: str) -> int:
    """Return the step of the newest published checkpoint, step-*, of a folder; -1 if there is none."""
    return max(checkpoints(folder), default=-1)


def checkpoints(folder: str) -> dict[int, str]:
    """Return the names of the published checkpoints of a folder, by their steps."""
    try:
        names = os.listdir(folder)
    except OSError:
        return {}
    return {
        _step_of(name): name
        for name in names
        if _step_of(name) >= 0 and os.path.isfile(os.path.join(folder, name, "manifest.json"))
    }


def _step_of(name: str) -> int:
    return int(name[len("step-") :]) if re.fullmatch(r"step-[0-9]{1,18}", name) else -1


def _own_file(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NOFOLLOW, 0o600)


def unwritable(path: str, error: OSError) -> UsageError:
    return UsageError(
        f"echelon cannot write the run directory {path}: {error.strerror}",
        hint="choose another directory: echelon run --run-dir DIRECTORY …",
    )


def unwritable_again(path: str, error: OSError) -> RunError:
    """Return the error for a run that cannot start its ranks again, because its directory cannot be written."""
    return RunError(
        f"the ranks cannot be started again: echelon cannot write the run directory {path}: {error.strerror}",
        hint=f"free space there; then go on from the newest checkpoint: echelon run --resume {path} …",
    )


def plan_fields(plan: Plan) -> dict[str, Any]:
    fields = asdict(plan)
    fields["scale_options"] = None if plan.scale_options is None else plan.scale_options._asdict()
    fields["show"] = "all" if plan.show is None else sorted(plan.show)
    return fields


def _refuse_if_used(path: str) -> None:
    try:
        events = open(os.path.join(path, "events.jsonl"), encoding="utf-8")  # noqa: SIM115
    except FileNotFoundError:
        return
    except OSError as error:
        raise UsageError(
            f"echelon cannot use the run directory {path}: {error.strerror}",
            hint="choose another directory: echelon run --run-dir DIRECTORY …",
        ) from None
    with events:
        try:
            fcntl.flock(events, fcntl.LOCK_SH | fcntl.LOCK_NB)
            state = "already holds a run that has ended"
        except BlockingIOError:
            state = "belongs to a run that is still running"
        except OSError:
            state = "already holds a run"  # Lustre mounted without flock does not tell whether the run is still going
    raise UsageError(
        f"the run directory {path} {state}",
        hint=f"choose another directory: echelon run --run-dir {path}-2 …",
    )


def new_path(base: str, label: str, now: float, run_id: str) -> str:
    """Return the path of a new run directory; its name sorts by time and names the script."""
    stamp = time.strftime("%Y%m%d-%H%M%S", time.localtime(now))
    word = "".join(char if char.isascii() and (char.isalnum() or char in "._-") else "_" for char in label)[:40]
    return os.path.join(base, f"{stamp}-{word}-{run_id[:4]}")


@contextmanager
def shared_folder(name: str, why: str) -> Iterator[str]:
    """Make a hidden folder in the current one, because nodes do not share /tmp; remove it in any case.

    What a killed process of this node has left goes too: a lock tells that its owner lives.

    Raise UsageError, with the reason `why` the folder is needed, if it cannot be made.
    """
    import tempfile

    prefix = f".echelon-{name}-{socket.gethostname()}-"
    try:
        _remove_left(prefix)
        folder = tempfile.mkdtemp(prefix=prefix, dir=os.getcwd())
        lock = open(os.path.join(folder, _OWNER), "w")  # noqa: SIM115
    except OSError as error:
        raise UsageError(
            f"echelon cannot write to {os.getcwd()}, and {why}: {error.strerror}",
            hint="cd to a folder of your own that every node sees",
        ) from None
    old = {number: signal.signal(number, _leave) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        with lock:
            with suppress(OSError):  # a file system without locks
                fcntl.flock(lock, fcntl.LOCK_EX)
            yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        for number, handler in old.items():
            signal.signal(number, handler)


def _remove_left(prefix: str) -> None:
    """Remove the hidden folders of this user in the current one whose owner on this node was killed."""
    for folder in [entry for entry in os.scandir(os.getcwd()) if entry.name.startswith(prefix)]:
        if folder.is_dir(follow_symlinks=False) and folder.stat().st_uid == os.geteuid():
            with suppress(OSError), open(os.path.join(folder, _OWNER), "r+") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(folder, ignore_errors=True)


def _leave(number: int, _frame: object) -> None:
    raise SystemExit(128 + number)
