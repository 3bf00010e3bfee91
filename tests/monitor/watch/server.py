"""Start `echelon watch --web` as a user does, and ask it as a browser, as Prometheus, or as somebody who may not."""

import http.client
import json
import os
import re
import signal
import socket
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple

from tests.runs import ECHELON, hear_interrupts

PATIENCE_SECONDS = 60.0


class Answer(NamedTuple):
    code: int
    headers: "dict[str, str]"
    content: bytes


class UnixConnection(http.client.HTTPConnection):
    """HTTP over a unix socket."""

    def __init__(self, path: str) -> None:
        super().__init__("localhost", timeout=PATIENCE_SECONDS)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(PATIENCE_SECONDS)
        self.sock.connect(self._path)


class Web:
    """A server in the background; use it in a `with` block."""

    def __init__(
        self,
        folder: Path,
        *words: str,
        environ: "Mapping[str, str] | None" = None,
        command: "tuple[str, ...]" = ECHELON,
    ) -> None:
        self.process = subprocess.Popen(
            [*command, "watch", "--web", *words],
            cwd=folder,
            env=dict(environ if environ is not None else os.environ),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            preexec_fn=hear_interrupts,
        )
        self.socket = words[words.index("--socket") + 1] if "--socket" in words else ""
        self.said = ""
        while "TOKEN is in" not in self.said:
            line = self.process.stdout.readline() if self.process.stdout else ""
            if not line:
                raise AssertionError(f"it ended: {self.said} {self.process.communicate()[1]}")
            self.said += line
        self.token_file = Path(re.search(r"TOKEN is in +(.*)", self.said)[1])
        self.token = self.token_file.read_text()
        self.port = int(re.search(r"http://127\.0\.0\.1:(\d+)/\?token=TOKEN", self.said)[1])

    def __enter__(self) -> "Web":
        return self

    def __exit__(
        self, kind: "type[BaseException] | None", error: "BaseException | None", trace: "TracebackType | None"
    ) -> None:
        self.end()

    def end(self, number: int = signal.SIGTERM) -> "tuple[int, str]":
        """End it with a signal; return its exit code, and what it wrote to standard error."""
        if self.process.poll() is None:
            self.process.send_signal(number)
        error = self.process.communicate(timeout=PATIENCE_SECONDS)[1] if not self.process.stderr.closed else ""
        return self.process.returncode, error

    @property
    def url(self) -> str:
        """The address that a person pastes."""
        return f"http://127.0.0.1:{self.port}/?token={self.token}"

    def bearer(self) -> "dict[str, str]":
        return {"Authorization": f"Bearer {self.token}"}

    def ask(
        self, path: str, headers: "Mapping[str, str] | None" = None, method: str = "GET", body: bytes = b""
    ) -> Answer:
        """Ask with the token if no headers are given."""
        one = (
            UnixConnection(self.socket)
            if self.socket
            else http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        )
        one.request(method, path, body or None, dict(headers if headers is not None else self.bearer()))
        answer = one.getresponse()
        told = Answer(answer.status, dict(answer.getheaders()), answer.read())
        one.close()
        return told

    def state(self) -> "dict[str, Any]":
        return json.loads(self.ask("/state.json").content)

    def raw(self, data: bytes) -> bytes:
        """Send bytes, and return all that comes back."""
        with socket.create_connection(("127.0.0.1", self.port), timeout=PATIENCE_SECONDS) as one:
            one.sendall(data)
            told = b""
            while part := one.recv(1 << 16):
                told += part
        return told

    def until(self, met: Any, what: str) -> "dict[str, Any]":
        """Return the first state for which something is so."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while time.monotonic() < deadline:
            state = self.state()
            if met(state):
                return state
            time.sleep(0.2)
        raise AssertionError(f"waited for {what}: {state}")
