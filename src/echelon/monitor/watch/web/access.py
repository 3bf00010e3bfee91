"""Who may see a run: whoever proves the token of a file that only its user can read, at a door of this machine."""

from __future__ import annotations

import hashlib
import hmac
import os
import re
import secrets
import shutil
import socket
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
