"""`echelon watch`: show what every rank and device of a run does, in the terminal, once, or as data."""

from __future__ import annotations

import ipaddress
import json
import os
import shlex
import signal
import socket
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, NoReturn

from echelon.cli.help import Help
from echelon.cli.options import Option, Scanned
from echelon.environment import digits
from echelon.errors import UsageError
from echelon.host import terminal

if TYPE_CHECKING:
    from echelon.monitor.watch.live import Live
    from echelon.monitor.watch.screen import View
    from echelon.monitor.watch.state import RunState
    from echelon.monitor.watch.web.access import Listener, Token


OPTIONS: tuple[Option, ...] = (
    Option(names=("--once",), help="print one picture and end; the default where the output is no terminal"),
    Option(names=("--json",), help="print the present state as JSON, and end"),
    Option(names=("--replay",), help="play a run again from its begin"),
    Option(names=("--in-job",), help="look from a node of the job, where this node sees the files late"),
    Option(names=("--speed",), value="N", help="with --replay: so many seconds of the run in one (60)"),
    Option(names=("--web",), help="show it as a page in a browser: on 127.0.0.1, for whoever has the token"),
    Option(names=("--port",), value="N", help="with --web: the port (default: a free one)"),
    Option(names=("--socket",), value="PATH", takes="file", help="with --web: a unix socket in place of a port"),
    Option(names=("-h", "--help"), help="show this"),
)
HELP = Help(
    command="watch",
    usage=("[options] [RUN|JOBID]",),
    about="Show what every rank and device of a run does: all nodes, a node, or a rank; the worst first.\n"
    "Without RUN it is the newest run of this folder. Keys: arrows, enter, esc, / to find, ? for help, q to quit.",
    operands=(Option(names=("RUN",), takes="run"),),
    groups=(("options", OPTIONS),),
    example="echelon watch train-8f65",
)
REFRESH_SECONDS = 1.0
DEFAULT_SPEED = 60.0
LOG_LINES, LOG_BYTES = 12, 1 << 14


def main(arguments: list[str]) -> int:
    scanned = HELP.scan_all(arguments)
    from echelon.launch import runs
    from echelon.monitor import recorded
    from echelon.monitor.watch.live import Live

    check(scanned)
    if len(scanned.rest) > 1:
        raise UsageError(f"watch shows one run, not {len(scanned.rest)}", hint=f"echelon watch {scanned.rest[0]}")
    speed = _speed(scanned)
    paths = [runs.find(name) for name in scanned.rest] or runs.all_runs()[-1:]
    if not paths:
        raise UsageError("echelon-runs/ of this folder has no runs", hint="echelon watch DIRECTORY-OF-A-RUN")
    recorded.read_heads(paths[0])
    if "in_job" in scanned.values:
        _look_in_job(paths[0], [word for word in arguments if word not in ("--in-job", *scanned.rest)])
    live = Live(runs.short_name(paths[0]), paths[0])
    if "web" in scanned.values:
        return show(scanned, paths[0], lambda: _present(live, paths[0]))
    _look(scanned, live, paths[0], speed)
    return 0


def _look_in_job(path: str, options: list[str]) -> NoReturn:
    """Become the same command in a step of the run's job."""
    from echelon.host import own_command
    from echelon.launch import runs
    from echelon.monitor import recorded
    from echelon.scheduler.slurm import step

    job_id = str(recorded.read(path).plan.get("job_id") or "")
    if not job_id:
        raise UsageError(f"{path} is no run of a Slurm job", hint=f"echelon watch {runs.short_name(path)}")
    here = [*own_command.command(), "watch", *options, os.path.abspath(path)]
    command = [*step.beside(job_id, has_terminal=sys.stdout.isatty() and sys.stdin.isatty()), *here]
    try:
        os.execvpe(command[0], command, step.step_environment(os.environ))
    except OSError as error:
        raise UsageError(f"srun cannot be started: {error.strerror}", hint=f"echelon watch {path}") from None


def _look(scanned: Scanned, live: Live, path: str, speed: float) -> None:
    if "json" in scanned.values:
        from echelon.monitor.watch.data import as_data

        print(json.dumps(as_data(_present(live, path)), indent=1))
    elif "replay" in scanned.values:
        _show(path, _played(live, speed), keeps_last="once" not in scanned.values)
    elif "once" in scanned.values or not terminal.moves_cursor(sys.stdout, os.environ) or not sys.stdin.isatty():
        print("\n".join(_once(_present(live, path))))
    else:
        _show(path, _followed(live, path), keeps_last=True)


def _speed(scanned: Scanned) -> float:
    text = scanned.values.get("speed", [str(DEFAULT_SPEED)])[-1]
    try:
        speed = float(text)
    except ValueError:
        speed = 0.0
    if not 0 < speed < 1e9:
        raise UsageError(f"--speed {text} is not a number above 0", hint="echelon watch --replay --speed 60 RUN")
    return speed


def _present(live: Live, path: str) -> RunState:
    from echelon.launch import runs

    os.stat(path)  # a run that was removed is not one that has not begun
    state = live.look()
    state.status = runs.state(path)
    if state.status == runs.RUNNING:
        state.now = max(state.now, time.time())
    return state


def _followed(live: Live, path: str) -> Iterator[RunState]:
    while True:
        yield _present(live, path)


def _played(live: Live, speed: float) -> Iterator[RunState]:
    """Yield the states of a run as time passes, so many times as fast."""
    lines = deque(live.all_lines())
    live.state.status = "played again"
    if not lines:
        return
    began, moment = time.monotonic(), float(lines[0]["time"])
    while lines:
        passed = (time.monotonic() - began) * speed
        due = []
        while lines and float(lines[0]["time"]) - moment <= passed:
            due.append(lines.popleft())
        yield live.take(due)


def _once(state: RunState) -> list[str]:
    from echelon.monitor.watch.screen import View, draw

    width, height = terminal.columns(), 24
    lines = draw(state, View(), width, height, with_colour=terminal.has_colour(sys.stdout, os.environ))[:-1]
    while lines and not lines[-1]:
        lines.pop()
    return [line for place, line in enumerate(lines) if line or lines[place - 1]]


def _show(path: str, states: Iterator[RunState], *, keeps_last: bool) -> None:
    """Show states until a person quits, or until there are no more and the last one need not stay."""
    if not sys.stdin.isatty() or not terminal.moves_cursor(sys.stdout, os.environ):
        raise UsageError("--replay needs a terminal", hint="echelon watch --once RUN")
    from echelon.host.keyboard import Screen
    from echelon.monitor.watch.screen import View, draw, press

    view, state = View(), None
    with_colour = terminal.has_colour(sys.stdout, os.environ)
    with Screen() as screen:
        while True:
            following = next(states, None)
            if following is None and not keeps_last:
                return
            state = following or state
            if state is None:
                return
            _read_log(path, state, view)
            width, height = os.get_terminal_size(sys.stdout.fileno())
            screen.show(draw(state, view, width, height, with_colour=with_colour))
            key = screen.key(REFRESH_SECONDS)
            if key and not press(key, view, state):
                return


def _read_log(path: str, state: RunState, view: View) -> None:
    from echelon.environment import regular_files
    from echelon.monitor.watch.screen import chosen_rank

    rank = chosen_rank(state, view) if view.level == "rank" else None
    view.log = ()
    if rank is None:
        return
    try:
        log = os.path.join(path, "logs", f"attempt-{state.attempt}", f"rank-{rank.rank}.log")
        with regular_files.opened(log) as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - LOG_BYTES))
            text = file.read(LOG_BYTES).decode("utf-8", "replace")
    except OSError:
        return
    lines = text.splitlines()[-LOG_LINES:]
    view.log = ["".join(each if each.isprintable() else " " for each in line) for line in lines]


MOST_PORT = 65535
LOCAL_PORT = 8080  # the port of a person's own computer that leads to a unix socket; any other does too


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
    from echelon.monitor.watch.web import access, server
    from echelon.monitor.watch.web.access import Token
    from echelon.monitor.watch.web.server import NewestState, WebServer

    path = scanned.values.get("socket", [""])[-1]
    port = _port(scanned.values.get("port", ["0"])[-1])
    shown = NewestState(present)
    with access.unix(path) if "socket" in scanned.values else access.tcp(port) as opened:
        for number in (signal.SIGTERM, signal.SIGHUP):
            if signal.getsignal(number) != signal.SIG_IGN:
                signal.signal(number, _leave)
        with Token(folder, opened.name, os.environ) as token:
            is_private = terminal.is_terminal(sys.stdout)
            login = f"{user(os.environ)}@{host(os.environ)}"
            print("\n".join(words(opened, token, present().name, login, shows_token=is_private)))
            sys.stdout.flush()
            WebServer(opened, token, server.read(), shown).serve()
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
    import pwd  # which Windows lacks

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


def words(opened: Listener, token: Token, name: str, login: str, *, shows_token: bool) -> list[str]:
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
