"""`echelon watch --web`: where the page of a run is, and how a browser elsewhere comes to it."""

from __future__ import annotations

import ipaddress
import os
import pwd
import shlex
import signal
import socket
import sys
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from echelon.environment import digits
from echelon.errors import UsageError
from echelon.host import terminal

if TYPE_CHECKING:
    from echelon.cli.options import Scanned
    from echelon.monitor.watch.state import RunState
    from echelon.monitor.watch.web.access import Token
    from echelon.monitor.watch.web.door import Door

MOST_PORT = 65535
LOCAL_PORT = 8080
"""The port of a person's own computer that leads to a unix socket; any other does too."""


def check(scanned: Scanned) -> None:
    """Raise UsageError for options that do not go together."""
    values = scanned.values
    for name in ("port", "socket"):
        if name in values and "web" not in values:
            raise UsageError(f"--{name} is for the page, which --web asks for", hint=f"echelon watch --web --{name} …")
    if "web" not in values:
        return
    for name in ("once", "json", "replay", "speed"):
        if name in values:
            raise UsageError(f"--web and --{name} exclude each other", hint="echelon watch --web RUN")
    if "port" in values and "socket" in values:
        raise UsageError("--port and --socket exclude each other: a server has one door", hint="echelon watch --web")


def show(scanned: Scanned, folder: str, present: Callable[[], RunState]) -> int:
    """Serve the page of a run until a signal ends it; Ctrl-C raises KeyboardInterrupt."""
    from echelon.monitor.watch.web import door, page
    from echelon.monitor.watch.web.access import Token
    from echelon.monitor.watch.web.server import Server
    from echelon.monitor.watch.web.shown import Shown

    path = scanned.values.get("socket", [""])[-1]
    port = _port(scanned.values.get("port", ["0"])[-1])
    shown = Shown(present)
    with door.unix(path) if "socket" in scanned.values else door.tcp(port) as opened:
        for number in (signal.SIGTERM, signal.SIGHUP):
            if signal.getsignal(number) != signal.SIG_IGN:
                signal.signal(number, _leave)
        with Token(folder, opened.name, os.environ) as token:
            is_private = terminal.is_terminal(sys.stdout)
            login = f"{user(os.environ)}@{host(os.environ)}"
            print("\n".join(words(opened, token, present().name, login, shows_token=is_private)))
            sys.stdout.flush()
            Server(opened, token, page.read(), shown).serve()
    return 0


def _leave(number: int, _frame: object) -> None:
    raise SystemExit(128 + number)


def _port(text: str) -> int:
    port = digits.whole(text, -1)
    if not 0 <= port <= MOST_PORT:
        raise UsageError(f"--port {text or repr('')} is not a port: a port is 1 to {MOST_PORT}", hint="--port 8080")
    return port


def user(environ: Mapping[str, str]) -> str:
    """Return the name of the user; a container may know only the number."""
    try:
        return pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        return environ.get("USER") or str(os.geteuid())


def host(environ: Mapping[str, str]) -> str:
    """Return a name or an address of this machine that a person's own computer may know.

    It is the whole name if this machine has one; else the address to which the person's ssh came, if the internet
    knows it; else the short name.
    """
    name = socket.gethostname()
    words = environ.get("SSH_CONNECTION", "").split()
    address = words[2] if len(words) == 4 else ""
    try:
        return address if "." not in name and ipaddress.ip_address(address).is_global else name
    except ValueError:
        return name


def words(opened: Door, token: Token, name: str, login: str, *, shows_token: bool) -> list[str]:
    """Return the lines that say how to come to the page; the token itself is only for a terminal, not for a log."""
    secret = token.text if shows_token else "TOKEN"
    port = opened.port or LOCAL_PORT
    target = shlex.quote(opened.path) if opened.path else f"127.0.0.1:{port}"
    curl = f"curl --unix-socket {target} http://localhost" if opened.path else f"curl http://127.0.0.1:{port}"
    file = shlex.quote(token.path)
    rows = [
        f"{name}: its page, until Ctrl-C, for whoever has the token",
        f"  on your own computer:  ssh -L {port}:{target} {login}",
        f"  then in its browser:   http://127.0.0.1:{port}/?token={secret}",
        f'  for Prometheus:        {curl}/metrics -H "Authorization: Bearer $(cat {file})"',
    ]
    return rows if shows_token else [*rows, f"  TOKEN is in            {token.path}"]
