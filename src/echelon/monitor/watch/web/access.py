"""Who may see a run: whoever proves the token of a file that only its user can read, at a door of this machine."""

from __future__ import annotations

import errno
import hashlib
import hmac
import os
import re
import secrets
import shutil
import socket
import stat
import struct
import tempfile
from collections.abc import Mapping
from types import TracebackType

from echelon.errors import UsageError
from echelon.node import private

_TOKEN_BYTES = 32
_HOST = re.compile(r"(127\.0\.0\.1|localhost|\[::1\])(:[0-9]{1,5})?", re.IGNORECASE)


class Token:
    """A secret of one server, and the file in which it lies; use it in a `with` block, which removes the file."""

    def __init__(self, folder: str, door: str, environ: Mapping[str, str]) -> None:
        """Write the file into a run directory, or, where others may write there or nobody, into a private folder.

        `door` is part of the file's name: the port, or what stands for a socket. Raise UsageError if no folder can be
        written.
        """
        self.text = secrets.token_urlsafe(_TOKEN_BYTES)
        self.cookie_name = f"echelon-{hashlib.sha256(self.text.encode()).hexdigest()[:8]}"
        self._own_folder = ""
        host = re.sub(r"[^\w.-]", "", socket.gethostname())
        self.path = self._write(folder, f"watch-{host}-{door}.token", environ)

    def _write(self, folder: str, name: str, environ: Mapping[str, str]) -> str:
        for place in (folder, environ.get("XDG_RUNTIME_DIR", "")):
            path = os.path.join(os.path.abspath(place), name)
            try:
                if place and private.is_own(place):
                    private.write(path, self.text.encode())
                    return path
            except OSError:
                continue  # a file system that is full, or that is only read
        try:
            self._own_folder = tempfile.mkdtemp(prefix="echelon-watch-")
            path = os.path.join(self._own_folder, name)
            private.write(path, self.text.encode())
        except OSError as error:
            raise UsageError(
                f"the token of the page can be written neither into {folder} nor into {tempfile.gettempdir()}: "
                f"{error.strerror}",
                hint="TMPDIR=FOLDER echelon watch --web",
            ) from None
        return path

    def __enter__(self) -> Token:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        private.remove(self.path)
        if self._own_folder:
            shutil.rmtree(self._own_folder, ignore_errors=True)

    def is_proved(self, text: str) -> bool:
        """Compare a text with the token, in a time that does not depend on where they differ."""
        return hmac.compare_digest(text.encode("utf-8", "surrogatepass"), self.text.encode())

    def is_proved_by(self, cookies: str, authorization: str) -> bool:
        """Say whether the headers Cookie and Authorization of a request, "" where missing, hold the token."""
        kind, _, text = authorization.strip().partition(" ")
        if kind.lower() == "bearer" and self.is_proved(text.strip()):
            return True
        pairs = [pair.strip().partition("=") for pair in cookies.split(";")]
        return any(name == self.cookie_name and self.is_proved(value) for name, _, value in pairs)

    @property
    def cookie(self) -> str:
        """Return the header Set-Cookie of a browser that came with the token; no script can read it."""
        return f"{self.cookie_name}={self.text}; HttpOnly; SameSite=Strict; Path=/"


def is_here(hosts: list[str]) -> bool:
    """Say whether the headers Host of a request are one that names this machine's inside, with any port.

    A page of the internet whose name was made to lead here has its own name there (DNS rebinding).
    """
    return len(hosts) == 1 and _HOST.fullmatch(hosts[0].strip()) is not None


ADDRESS = "127.0.0.1"
_WAITING = 64
_MOST_PATH_BYTES = 107  # what sun_path of Linux holds, without its last byte


class Listener:
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

    def __enter__(self) -> Listener:
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


def tcp(port: int) -> Listener:
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
            f"port {port} of {ADDRESS} cannot be had: {taken}", hint="echelon watch --web   it takes a free port"
        ) from None
    return Listener(listener, port=listener.getsockname()[1])


def unix(path: str) -> Listener:
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
    return Listener(listener, path=whole)


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
