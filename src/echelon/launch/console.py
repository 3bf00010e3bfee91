"""What the user sees: the output of the ranks, a progress line during the start, and one line at the end."""

from __future__ import annotations

import errno
import os
import re
import select
import sys
import time
from collections import Counter
from collections.abc import Callable, Collection

from echelon.host import terminal
from echelon.launch import failure
from echelon.launch.attempt import Attempt
from echelon.launch.failure import Failure
from echelon.launch.kept import KeeperLink, ShownOutput
from echelon.node.channel import Message
from echelon.spec import Plan

STDOUT, STDERR = 1, 2
_LINES = {"stdout": re.compile(rb"[^\n]*\n"), "stderr": re.compile(rb"[^\r\n]*(?:\r\n|\r|\n)")}
_AFTER_BAR = re.compile(rb"(\r[^\r\n]+?)(?=echelon: )")
_CAUSE = re.compile(r"(?<=\) failed first: ).+")
_OURS = re.compile(rb"^echelon: [^\n]*$", re.MULTILINE)


class ConsoleClosed(Exception):
    """Standard output cannot be written any more: its reader has ended, or the disk is full."""

    def __init__(self, error: OSError) -> None:
        super().__init__(error.strerror)
        self.is_pipe = error.errno in (errno.EPIPE, errno.EIO)
        self.is_unread = error.errno == errno.EAGAIN


class Console:
    """Write output as bytes; prefix lines with the rank only when several ranks are shown."""

    def __init__(self, *, is_terminal: bool, shows_progress: bool | None = None) -> None:
        self.names_ranks = False
        self.gives_up: Callable[[], bool] = lambda: False
        """Called while no reader takes the output: whether to stop waiting, because of a signal or a deadline."""
        self._is_terminal = is_terminal
        self._shows_progress = is_terminal if shows_progress is None else shows_progress
        self._is_one_place = is_terminal or _is_one_file()
        self._progress = ""
        self._is_mid_line = {STDOUT: False, STDERR: False}
        self._partial: dict[tuple[int, str], bytes] = {}

    def rank_output(self, rank: int, stream: str, data: bytes) -> None:
        """Show a rank's output, in whole lines if lines of several ranks could mix."""
        target = STDERR if stream == "stderr" else STDOUT
        if not self.names_ranks:
            self.clear()
            if target == STDERR and self._is_terminal:
                data = _with_lines_of_ours(data, is_mid_line=self._is_after_text())
            _write(target, data, self.gives_up)
            self._is_mid_line[target] = not data.endswith(b"\n")
            return
        prefix = b"[%d] " % rank
        partial = self._partial.pop((rank, stream), b"")
        if target == STDERR and self._is_terminal:
            data = _with_lines_of_ours(data, is_mid_line=bool(partial), left=len(prefix))
        data = partial + data
        ends = b"\n\r" if stream == "stderr" else b"\n"  # progress bars on standard error end each state with \r
        whole = data[: max(data.rfind(end) for end in (ends[:1], ends[-1:])) + 1]
        if len(whole) < len(data):
            self._partial[rank, stream] = data[len(whole) :]
        if whole:
            self.clear()
            lines = b"".join(prefix + line for line in _LINES[stream].findall(whole) if line != b"\r")
            _write(target, lines, self.gives_up)
            self._is_mid_line[target] = not lines.endswith(b"\n")  # a progress bar that ends its line with \r stays

    def held_bytes(self, rank: int) -> int:
        """Return the bytes of a rank's unfinished lines, which are not shown yet."""
        return sum(len(self._partial.get((rank, stream), b"")) for stream in _LINES)

    def finish_output(self) -> None:
        for (rank, stream), rest in sorted(self._partial.items()):
            self.clear()
            target = STDERR if stream == "stderr" else STDOUT
            end = b"\n" if self._is_mid_line[target] else b""
            _write(target, end + b"[%d] " % rank + rest + b"\n", self.gives_up)
            self._is_mid_line[target] = False
        self._partial.clear()

    def begin_attempt(self) -> None:
        """Show what is unfinished, and let the next attempt begin a new line."""
        self.finish_output()
        if self._is_mid_line[STDOUT]:
            _write(STDOUT, b"\n", self.gives_up)
            self._is_mid_line[STDOUT] = False

    def progress(self, text: str) -> None:
        """Show the progress of the start, on a terminal only; never over the unfinished line of a rank."""
        if self._shows_progress and text != self._progress and not self._is_after_text():
            _write(STDERR, b"\r\x1b[2K" + f"echelon: {text}".encode(), self.gives_up)
            self._progress = text

    def clear(self) -> None:
        if self._progress:
            _write(STDERR, b"\r\x1b[2K", self.gives_up)
            self._progress = ""

    def say(self, text: str) -> None:
        """Print a message of echelon on standard error."""
        self.say_lines([f"echelon: {text}"])

    def tell_person(self, text: str) -> None:
        """Print a message only if standard error is a terminal: logs do not need it."""
        if self._is_terminal:
            self.say(text)

    def say_lines(self, lines: list[str]) -> None:
        """Print lines of echelon on standard error, never at the end of an unfinished line."""
        self.clear()
        if self._is_after_text():
            _write(STDERR, b"\n", self.gives_up)
            self._is_mid_line = {STDOUT: False, STDERR: False}
        text = _for_person("\n".join(lines)) if self._is_terminal else "\n".join(lines)
        _write(STDERR, (text + "\n").encode("utf-8", "surrogateescape"), self.gives_up)

    def _is_after_text(self) -> bool:
        """Say whether standard error is in the middle of a line."""
        return self._is_mid_line[STDERR] or (self._is_one_place and self._is_mid_line[STDOUT])


def _for_person(text: str) -> str:
    """Wrap echelon's lines for the terminal, and print the cause of a failure in the colour of errors."""
    with_colour = terminal.has_colour(sys.stderr, os.environ)
    return _CAUSE.sub(
        lambda cause: terminal.paint(cause[0], "error", with_colour=with_colour), terminal.for_person(text, sys.stderr)
    )


def _with_lines_of_ours(data: bytes, *, is_mid_line: bool, left: int = 0) -> bytes:
    """Move echelon's messages from inside a rank below its progress bar, and wrap them between words.

    A bar begins its line with \\r and leaves it unfinished. `left` is the width of the rank's name.
    """
    if b"echelon: " not in data:
        return data
    if is_mid_line and data.startswith(b"echelon: "):
        data = b"\n" + data
    width = max(terminal.columns() - 1 - left, 20)

    def wrapped(line: re.Match[bytes]) -> bytes:
        text = terminal.wrapped(line[0].decode("utf-8", "surrogateescape"), width=width, indent="  ")
        return text.encode("utf-8", "surrogateescape")

    return _OURS.sub(wrapped, _AFTER_BAR.sub(rb"\1\n", data))


def _is_one_file() -> bool:
    """Say whether standard output and standard error are one file, as after 2>&1."""
    try:
        return os.path.samestat(os.fstat(STDOUT), os.fstat(STDERR))
    except OSError:
        return False


def _write(descriptor: int, data: bytes, gives_up: Callable[[], bool]) -> None:
    """Write all data; raise ConsoleClosed when nobody reads and `gives_up` says so."""
    while data:
        try:
            if not select.select([], [descriptor], [], 0.1)[1]:
                if gives_up():
                    raise ConsoleClosed(OSError(errno.EAGAIN, "nothing reads the output"))
                continue
            data = data[os.write(descriptor, data[: select.PIPE_BUF]) :]  # a ready pipe takes this much at once
        except BlockingIOError:
            time.sleep(0.01)  # another program has made the shared terminal non-blocking
        except OSError as error:
            if descriptor == STDERR:
                return
            raise ConsoleClosed(error) from None


class Screen:
    """Pass the ranks' output to the console until nobody reads it."""

    def __init__(
        self, console: Console, shown: ShownOutput, *, on_broken_pipe: Callable[[], None],
        on_failure: Callable[[Failure], None],
    ) -> None:  # fmt: skip
        self._console = console
        self._shown = shown
        self._on_broken_pipe = on_broken_pipe
        self._on_failure = on_failure
        self._is_closed = False
        self._has_begun = False
        self._num_bytes: Counter[int] = Counter()

    def show(self, message: Message) -> None:
        self._show(message["rank"], message["stream"], message["data"].encode("utf-8", "surrogateescape"))

    def begin(self, kept: KeeperLink, reason: Failure | None, logs: str, ranks: Collection[int] | None) -> None:
        """Begin to show a new attempt, after the rest of the one before, which failed for this reason."""
        is_of_lost_supervisor = kept.num_earlier_supervisors > 0 and not self._has_begun
        if is_of_lost_supervisor or _is_lost_agent(reason):
            self._catch_up(logs, ranks, calm_seconds=0.2)
        self._has_begun = True
        self._shown.clear()
        self._num_bytes.clear()

    def end(self, outcome: Failure | None, logs: str, ranks: Collection[int] | None) -> None:
        if _is_lost_agent(outcome):
            self._catch_up(logs, ranks, calm_seconds=1.0)
        self._console.finish_output()
        self._console.clear()

    def _catch_up(self, logs: str, ranks: Collection[int] | None, *, calm_seconds: float) -> None:
        """Show what ranks printed while nobody passed it on; their logs do not say to which of two streams."""
        self._console.finish_output()
        show = lambda rank, data: self._show(rank, "stdout", data)  # noqa: E731
        self._shown.catch_up(logs, ranks, show, calm_seconds=calm_seconds)
        self._console.finish_output()

    def _show(self, rank: int, stream: str, data: bytes) -> None:
        if self._is_closed:
            return
        self._num_bytes[rank] += len(data)
        try:
            self._console.rank_output(rank, stream, data)
            self._shown.set(rank, self._num_bytes[rank] - self._console.held_bytes(rank))
        except ConsoleClosed as error:
            self._is_closed = True
            if error.is_pipe:
                self._on_broken_pipe()
            elif not error.is_unread:
                self._on_failure(Failure(cause=failure.NO_OUTPUT, detail=str(error), time=time.time()))

    def show_progress(self, plan: Plan, attempt: Attempt, *, num_agents: tuple[int, int], num_imported: int) -> None:
        """Show how far the start of an attempt has come; nothing if all ranks run."""
        if attempt.is_running and attempt.num_started >= len(attempt.alive):
            self._console.clear()
            return
        is_importing = plan.launch == "warm" and num_imported < num_agents[1]
        self._console.progress(_progress(plan, attempt, num_agents=num_agents, is_importing=is_importing))


def _is_lost_agent(reason: Failure | None) -> bool:
    return reason is not None and reason.cause == failure.LOST_AGENT


def _progress(plan: Plan, attempt: Attempt, *, num_agents: tuple[int, int], is_importing: bool) -> str:
    """Return the line; `num_agents` holds the number of agents that joined, and the number expected."""
    num_joined, num_wanted = num_agents
    parts = [f"{num_joined}/{num_wanted} nodes up" if num_wanted > 1 else "starting"]
    packages = list(dict.fromkeys(name.replace(":", ".").partition(".")[0] for name in plan.preload))
    if is_importing and packages:
        parts.append("importing " + ", ".join(packages))
    if attempt.is_running:
        parts.append(f"{attempt.num_started}/{len(attempt.alive)} ranks started")
    return " · ".join(parts)
