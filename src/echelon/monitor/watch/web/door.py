"""The door of a server for one person: a port of 127.0.0.1, or a unix socket that only this user can open."""

from __future__ import annotations

import errno
import hashlib
import os
import socket
import stat
import struct
from types import TracebackType

from echelon.errors import UsageError

ADDRESS = "127.0.0.1"
_WAITING = 64
_MOST_PATH_BYTES = 107  # what sun_path of Linux holds, without its last byte


class Door:
    """A listening socket, and how it is named; use it in a `with` block, which closes it."""

    def __init__(self, listener: socket.socket, *, port: int = 0, path: str = "") -> None:
        self.listener = listener
        self.port = port
        self.path = path
        self._file = os.stat(path).st_ino if path else 0

    @property
    def name(self) -> str:
        """Return a short name, the same for the same door: its port, or what stands for its path."""
        return str(self.port) if self.port else f"socket-{hashlib.sha256(os.fsencode(self.path)).hexdigest()[:8]}"

    def __enter__(self) -> Door:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.listener.close()
        try:
            if self.path and os.stat(self.path).st_ino == self._file:
                os.unlink(self.path)
        except OSError:
            pass  # somebody has removed it already


def tcp(port: int) -> Door:
    """Listen on a port of 127.0.0.1; 0 takes a free one. Raise UsageError if the port cannot be had."""
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((ADDRESS, port))
        listener.listen(_WAITING)
    except OSError as error:
        listener.close()
        taken = "another program listens there" if error.errno == errno.EADDRINUSE else error.strerror
        raise UsageError(
            f"port {port} of {ADDRESS} cannot be had: {taken}",
            hint="echelon watch --web   it takes a free port",
        ) from None
    return Door(listener, port=listener.getsockname()[1])


def unix(path: str) -> Door:
    """Listen on a new unix socket of mode 0600; raise UsageError if it cannot be made."""
    whole = os.path.abspath(path)
    if not path or len(os.fsencode(whole)) > _MOST_PATH_BYTES:
        raise UsageError(
            f"--socket {path or repr('')}: the path of a unix socket has 1 to {_MOST_PATH_BYTES} bytes, "
            f"and {whole} has {len(os.fsencode(whole))}",
            hint="echelon watch --web --socket ~/watch.sock",
        )
    if os.path.lexists(whole):
        raise UsageError(_taken(path, whole), hint=f"rm {path}   or name another file")
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    mask = os.umask(0o177)  # nobody else may connect, not even between its making and a change of its mode
    try:
        listener.bind(whole)
        listener.listen(_WAITING)
    except OSError as error:
        listener.close()
        raise UsageError(
            f"--socket {path} cannot be made: {error.strerror}", hint="name a file in a folder of your own"
        ) from None
    finally:
        os.umask(mask)
    return Door(listener, path=whole)


def _taken(path: str, whole: str) -> str:
    if not stat.S_ISSOCK(os.lstat(whole).st_mode):
        return f"--socket {path}: there is a file already"
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as one:
        one.settimeout(1.0)
        try:
            one.connect(whole)
        except ConnectionRefusedError:
            return f"--socket {path}: an older socket is there, on which nobody listens"
        except OSError:
            pass  # its program is busy, or of another user
    return f"--socket {path}: another program listens there"


def is_own_user(connection: socket.socket) -> bool:
    """Say whether the program at the other end of a unix socket is of this user; of a port it is not known: True."""
    if connection.family != socket.AF_UNIX:
        return True
    form = struct.Struct("3i")  # struct ucred: process, user, group
    _, user, _ = form.unpack(connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, form.size))
    return bool(user == os.geteuid())
