"""Answer GET for the page, the state and Prometheus; a request that is slow or broken keeps nobody waiting."""

from __future__ import annotations

import base64
import gzip
import hashlib
import io
import json
import os
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from email.message import Message
from http.server import BaseHTTPRequestHandler
from typing import Any
from urllib.parse import parse_qs

from echelon.environment import regular_files
from echelon.errors import EchelonError
from echelon.monitor.page import plots
from echelon.monitor.watch.data import as_data
from echelon.monitor.watch.state import RunState
from echelon.monitor.watch.web import metrics
from echelon.monitor.watch.web.access import Listener, Token, is_here, is_own_user

HEAD_SECONDS, MOST_HEAD_BYTES = 5.0, 1 << 15
"""A request must be here by then, and be no longer: a browser sends the cookies of all programs of 127.0.0.1."""
WRITE_SECONDS = 20.0
MOST_CONNECTIONS = 64  # connections at once; one more ends the oldest
_REST_SECONDS, _MOST_REST_BYTES = 0.5, 1 << 16
PLAIN = "text/plain; charset=utf-8"
_REFUSED = "This page needs its token: open the address that `echelon watch --web` has printed.\n"
_ALWAYS = {
    "Cache-Control": "no-store",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}


class WebServer:
    """A server of one run at one door."""

    def __init__(self, door: Listener, token: Token, page: WebPage, shown: NewestState) -> None:
        self.token, self.page, self.shown = token, page, shown
        self._door = door
        self._lock = threading.Lock()
        self._connections: dict[int, socket.socket] = {}

    def serve(self) -> None:
        """Answer until an exception, such as KeyboardInterrupt, ends it."""
        while True:
            try:
                connection, _ = self._door.listener.accept()
            except OSError:  # it is gone already, or this process has too many open files
                time.sleep(0.05)
                continue
            self._admit(connection)
            try:
                threading.Thread(target=self._answer, args=(connection,), daemon=True).start()
            except RuntimeError:  # no more threads for this user
                self._end(connection)

    def _admit(self, connection: socket.socket) -> None:
        with self._lock:
            if len(self._connections) >= MOST_CONNECTIONS:
                oldest = self._connections.pop(next(iter(self._connections)))
                _shut(oldest, socket.SHUT_RDWR)  # its thread notices, and closes it
            self._connections[id(connection)] = connection

    def _end(self, connection: socket.socket) -> None:
        with self._lock:
            self._connections.pop(id(connection), None)
            connection.close()

    def _answer(self, connection: socket.socket) -> None:
        try:
            if is_own_user(connection):
                WebRequest(connection, self)
        except OSError:
            pass  # whoever asked is gone, or too slow
        finally:
            self._end(connection)


class WebRequest(BaseHTTPRequestHandler):
    """One request and its answer; the connection ends with it."""

    default_request_version = "HTTP/1.0"  # of a line that names none: the answer has a head too
    server: Any
    rfile: Any
    wfile: Any

    def __init__(self, connection: socket.socket, server: WebServer) -> None:
        super().__init__(connection, ("", 0), server)  # type: ignore[arg-type]  # of a server it needs no more than we do

    def setup(self) -> None:
        """Give the answer a place; it leaves as a whole."""
        self.wfile = io.BytesIO()
        self.headers = Message()  # an answer to a request that is no HTTP looks into it

    def handle(self) -> None:
        """Read a request's head, within its time and size, and answer."""
        head = self._head()
        self.rfile = io.BytesIO(head)
        if len(head) > MOST_HEAD_BYTES:
            self.requestline, self.request_version, self.command = "", self.protocol_version, ""
            self.send_error(431)
        elif head:
            self.handle_one_request()

    def finish(self) -> None:
        """Send the answer, and read a little of what was sent beyond the head: else the system drops the answer too."""
        self.request.settimeout(WRITE_SECONDS)
        self.request.sendall(self.wfile.getvalue())
        _shut(self.request, socket.SHUT_WR)
        deadline, rest = time.monotonic() + _REST_SECONDS, 0
        while rest < _MOST_REST_BYTES and (data := self._receive(deadline)):
            rest += len(data)

    def _head(self) -> bytes:
        """Return the head; what has come of it if it is too long; nothing if it does not come."""
        deadline, head = time.monotonic() + HEAD_SECONDS, b""
        while b"\r\n\r\n" not in head and len(head) <= MOST_HEAD_BYTES:
            data = self._receive(deadline)
            if not data:
                return b""
            head += data
        return head

    def _receive(self, deadline: float) -> bytes:
        left = deadline - time.monotonic()
        if left <= 0:
            return b""
        self.request.settimeout(left)
        try:
            return bytes(self.request.recv(1 << 14))
        except OSError:
            return b""

    def do_GET(self) -> None:
        """Answer a request for the page, the state or the metrics, if it comes from here and proves the token."""
        if not is_here(self.headers.get_all("Host", [])):
            self._send(403, PLAIN, b"This server is only for http://127.0.0.1 and http://localhost.\n")
            return
        path, _, query = self.path.partition("?")
        token: Token = self.server.token
        if path == "/" and query:
            if token.is_proved("".join(parse_qs(query, errors="replace").get("token", [])[:1])):
                self._send(303, PLAIN, b"", {"Location": "/", "Set-Cookie": token.cookie})
            else:
                self._send(403, PLAIN, _REFUSED.encode())
        elif token.is_proved_by(self.headers.get("Cookie", ""), self.headers.get("Authorization", "")):
            self._show(path)
        else:
            self._send(403, PLAIN, _REFUSED.encode())

    def _show(self, path: str) -> None:
        page: WebPage = self.server.page
        shown: NewestState = self.server.shown
        try:
            if path == "/":
                self._send(200, "text/html; charset=utf-8", page.content)
            elif path == "/state.json" and "gzip" in self.headers.get("Accept-Encoding", ""):
                self._send(200, "application/json", shown.zipped_json(), {"Content-Encoding": "gzip"})
            elif path == "/state.json":
                self._send(200, "application/json", shown.json())
            elif path == "/metrics":
                self._send(200, metrics.TYPE, shown.metrics())
            else:
                self._send(404, PLAIN, b"There are /, /state.json and /metrics.\n")
        except RunGone as error:
            self._send(503, PLAIN, f"{error.message}\n".encode())

    def _send(self, code: int, kind: str, content: bytes, more: dict[str, str] | None = None) -> None:
        self.send_response(code)
        policy = (
            self.server.page.policy if kind.startswith("text/html") else "default-src 'none'; frame-ancestors 'none'"
        )
        fixed = {**_ALWAYS, "Content-Security-Policy": policy, "Content-Type": kind}
        for name, value in {**fixed, **(more or {}), "Content-Length": str(len(content))}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(content)

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:  # noqa: ARG002
        """Answer a request that is no HTTP, or whose method is none of ours, without a word of it."""
        if code == 501:
            self._send(405, PLAIN, b"This server only shows: GET.\n", {"Allow": "GET"})
        else:
            self._send(code, PLAIN, f"{self.responses.get(code, ('', ''))[0]}\n".encode())

    def version_string(self) -> str:
        """Return the header Server, which names no versions."""
        return "echelon"

    def log_message(self, *words: object) -> None:
        """Write nothing: a request may hold the token."""


def _shut(connection: socket.socket, how: int) -> None:
    try:
        connection.shutdown(how)
    except OSError:
        pass  # the other end has gone


_FOLDER = os.path.dirname(os.path.abspath(__file__))


@dataclass(frozen=True, slots=True, kw_only=True)
class WebPage:
    """The document, and its header Content-Security-Policy."""

    content: bytes
    policy: str


def read() -> WebPage:
    """Put the style and the script into the page; the policy names their hashes."""
    html, style, script = (
        regular_files.read_text(os.path.join(_FOLDER, f"page.{kind}")) for kind in ("html", "css", "js")
    )
    style = plots.STYLE + style
    policy = "; ".join(
        [
            "default-src 'none'",
            f"script-src '{_digest(script)}'",
            f"style-src '{_digest(style)}'",
            "connect-src 'self'",
            "base-uri 'none'",
            "form-action 'none'",
            "frame-ancestors 'none'",
            "require-trusted-types-for 'script'",  # no text of a run becomes markup, even if the script tried
            "trusted-types 'none'",
        ]
    )
    return WebPage(content=html.replace("{style}", style).replace("{script}", script).encode(), policy=policy)


def _digest(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


LEAST_SECONDS = 1.0
_LEVEL = 1  # a third of the time of the usual level, and a tenth more bytes


class RunGone(EchelonError):
    """The run directory can no longer be read."""


class NewestState:
    """The newest state, as bytes."""

    def __init__(self, present: Callable[[], RunState], clock: Callable[[], float] = time.monotonic) -> None:
        """Look for the first time; `present` returns the state now, and raises OSError if the run is gone."""
        self._present = present
        self._clock = clock
        self._lock = threading.Lock()
        self._state = present()
        self._looked = clock()
        self._made: dict[str, bytes] = {}

    def json(self) -> bytes:
        """Return the state as JSON, and raise RunGone if it cannot be read."""
        with self._lock:
            return self._json()

    def zipped_json(self) -> bytes:
        """Return the same through gzip."""
        with self._lock:
            return self._kept("gzip", lambda: gzip.compress(self._json(), _LEVEL, mtime=0))

    def metrics(self) -> bytes:
        """Return the state as Prometheus text; raise RunGone like `json`."""
        with self._lock:
            return self._kept("metrics", lambda: metrics.text(self._state).encode("utf-8", "replace"))

    def _json(self) -> bytes:
        return self._kept("json", lambda: json.dumps(as_data(self._state), separators=(",", ":")).encode())

    def _kept(self, name: str, make: Callable[[], bytes]) -> bytes:
        if self._clock() - self._looked >= LEAST_SECONDS:
            try:
                self._state = self._present()
            except OSError as error:
                raise RunGone(f"the run directory cannot be read: {error.strerror}") from None
            self._looked = self._clock()
            self._made.clear()
        if name not in self._made:
            self._made[name] = make()
        return self._made[name]
