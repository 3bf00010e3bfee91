"""The processes, files and clock of this machine; or recorded ones, for tests."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from echelon.errors import EchelonError

if TYPE_CHECKING:
    import subprocess

    Process = subprocess.Popen[bytes]
    """A started program."""


class ToolMissing(EchelonError):
    """A program of the system is not installed here."""


class ToolSlow(EchelonError):
    """A program of the system did not answer in time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finished:
    """The exit code and the output of a finished program."""

    exit_code: int
    stdout: str
    stderr: str


class Host:
    """The real machine."""

    @property
    def environ(self) -> Mapping[str, str]:
        return os.environ

    def now(self) -> float:
        """Return seconds since the epoch."""
        return time.time()

    def ask(self, argv: Sequence[str], *, timeout_seconds: float, environ: Mapping[str, str] | None = None) -> Finished:
        """Run a program to its end, in `environ` or our own environment; raise ToolMissing or ToolSlow."""
        import subprocess  # most commands never need these 10 ms

        try:
            done = subprocess.run(
                list(argv),
                capture_output=True,
                timeout=timeout_seconds,
                stdin=subprocess.DEVNULL,
                env=dict(environ) if environ is not None else None,
                check=False,
            )
        except OSError as error:
            raise _missing(argv[0], error) from None
        except subprocess.TimeoutExpired:
            raise ToolSlow(f"{argv[0]} did not answer within {timeout_seconds:g} s") from None
        return Finished(exit_code=done.returncode, stdout=os.fsdecode(done.stdout), stderr=os.fsdecode(done.stderr))

    def lead(self, argv: Sequence[str], *, environ: Mapping[str, str], folder: str) -> int:
        """Run a program to its end in a folder, with our own keyboard and screen; return its exit code."""
        import subprocess

        try:
            return subprocess.run(list(argv), env=dict(environ), cwd=folder, check=False).returncode
        except OSError as error:
            raise _missing(argv[0], error) from None

    def start(self, argv: Sequence[str], *, environ: Mapping[str, str], folder: str = "") -> Process:
        """Start a program in its own session, in `folder` or the current one; its output comes through one pipe."""
        import subprocess

        try:
            return subprocess.Popen(
                list(argv),
                env=dict(environ),
                cwd=folder or None,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        except OSError as error:
            raise _missing(argv[0], error) from None


def _missing(name: str, error: OSError) -> ToolMissing:
    if isinstance(error, FileNotFoundError):
        return ToolMissing(f"{name} is not installed here")
    return ToolMissing(f"{name} cannot be started: {error.strerror}")


class RecordedHost(Host):
    """Answer each command line with the recorded output of a real machine; other commands are missing."""

    def __init__(
        self, *, environ: Mapping[str, str], answers: Mapping[tuple[str, ...], Finished], now: float = 0.0
    ) -> None:
        self._environ = dict(environ)
        self._answers = dict(answers)
        self._now = now
        self.asked: list[tuple[str, ...]] = []

    @property
    def environ(self) -> Mapping[str, str]:
        return self._environ

    def now(self) -> float:
        return self._now

    def ask(
        self,
        argv: Sequence[str],
        *,
        timeout_seconds: float,  # noqa: ARG002
        environ: Mapping[str, str] | None = None,  # noqa: ARG002
    ) -> Finished:
        self.asked.append(tuple(argv))
        if tuple(argv) not in self._answers:
            raise ToolMissing(f"{argv[0]} is not installed here")
        return self._answers[tuple(argv)]
