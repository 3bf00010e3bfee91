"""Run launchers one after the other and measure each."""

from __future__ import annotations

import os
import select
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from benchmarks.account import Account, settle
from benchmarks.figures import Spread

LIMIT_SECONDS = 180.0
PROGRAMS = os.path.join(os.path.dirname(__file__), "programs")


class BenchmarkError(Exception):
    """Something could not be measured."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One run of one launcher."""

    wall_seconds: float
    """From just before the launcher is executed to the last mark of its ranks."""
    cpu_seconds: float
    """Of all processes, until every one of them has ended."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Meter:
    """How often and where things are measured."""

    account: Account
    folder: str
    num_rounds: int
    num_calls: int
    """How often a command that does nothing but answer is called."""
    environ: Mapping[str, str] = field(default_factory=dict)

    def marks(self) -> str:
        """Make a folder in which ranks leave their marks."""
        return tempfile.mkdtemp(dir=self.folder, prefix="marks-")

    def run(self, argv: Sequence[str], *, marks: str = "", environ: Mapping[str, str] | None = None) -> Sample:
        """Measure one command to its end; without marks, its end is what counts."""
        before = self.account.processes()
        cpu_before = self.account.cpu_seconds()
        began = time.monotonic()
        with tempfile.TemporaryFile(dir=self.folder) as output:
            process = self.start(argv, output=output.fileno(), environ=environ)
            exit_code = _wait(process)
            ended = time.monotonic()
            settle(self.account, before)
            cpu_seconds = self.account.cpu_seconds() - cpu_before
            if exit_code:
                output.seek(0)
                said = output.read().decode("utf-8", "replace")
                raise BenchmarkError(f"{' '.join(argv)} ended with exit code {exit_code}\n{said}")
        last = max(read_marks(marks)) if marks else ended
        return Sample(wall_seconds=last - began, cpu_seconds=cpu_seconds)

    def start(
        self, argv: Sequence[str], *, output: int, environ: Mapping[str, str] | None = None
    ) -> subprocess.Popen[bytes]:
        """Start a command in a folder of the benchmark's own."""
        environ = self.environ if environ is None else environ
        return subprocess.Popen(
            argv, cwd=self.folder, env=dict(environ), stdin=subprocess.DEVNULL, stdout=output, stderr=output
        )

    def interleave(self, *launches: Callable[[], Sample], num_rounds: int = 0) -> list[list[Sample]]:
        """Measure A B A B … after one uncounted round that fills the file cache; return the samples of each."""
        for launch in launches:
            launch()
        rounds = [[launch() for launch in launches] for _ in range(num_rounds or self.num_rounds)]
        return [list(samples) for samples in zip(*rounds, strict=True)]


def _wait(process: subprocess.Popen[bytes]) -> int:
    """Wait for a process through the kernel; Popen.wait with a timeout looks only every few milliseconds."""
    descriptor = os.pidfd_open(process.pid)
    try:
        has_ended, _, _ = select.select([descriptor], [], [], LIMIT_SECONDS)
    finally:
        os.close(descriptor)
    if not has_ended:
        process.terminate()
        raise BenchmarkError(f"{process.args!r} still ran after {LIMIT_SECONDS:g} s")
    return process.wait()


def walls(samples: Sequence[Sample]) -> Spread:
    return Spread(tuple(sample.wall_seconds for sample in samples))


def cpus(samples: Sequence[Sample]) -> Spread:
    return Spread(tuple(sample.cpu_seconds for sample in samples))


def read_marks(folder: str) -> list[float]:
    """Return the times that ranks have noted, on the clock that all processes of a machine share."""
    times = []
    for name in os.listdir(folder):
        with open(os.path.join(folder, name)) as mark:
            times.append(float(mark.read()))
    if not times:
        raise BenchmarkError(f"no rank has left a mark in {folder}")
    return times


def program(name: str) -> str:
    """Return the path of one of the scripts that are launched."""
    return os.path.join(PROGRAMS, name + ".py")


def tool(name: str) -> str:
    """Return the path of a command that is installed beside this Python."""
    path = shutil.which(name, path=os.path.dirname(sys.executable)) or shutil.which(name)
    if path is None:
        raise BenchmarkError(f"{name} is not installed: pip install '.[torch]'")
    return path


def clean_environ() -> dict[str, str]:
    """Return this process's environment, so that every launcher finds its bytecode compiled and one thread a rank."""
    environ = dict(os.environ)
    for name in ("PYTHONDONTWRITEBYTECODE", "PYTHONUNBUFFERED"):
        environ.pop(name, None)
    return {**environ, "OMP_NUM_THREADS": "1"}
