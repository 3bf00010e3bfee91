"""A person's shell in an empty folder, in which `echelon run` is started as a process of its own."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import pytest
from tests import warm
from tests.runs import hear_interrupts

import echelon

SOURCES = str(Path(echelon.__file__).parents[1])
MARK = "RUN_TEST"  # in the environment of all that a test starts, so that it can be found again
# what decides how a run behaves, and is not the same on every machine
FOREIGN = (
    "ECHELON", "SLURM", "OMP_", "MKL_", "PYTHON", "TORCH", "NCCL", "JAX", "TF_CONFIG", "HOROVOD", "OMPI", "PMI",
    "RANK", "LOCAL_", "WORLD_SIZE", "NODE_RANK", "MASTER_", "CUDA_VISIBLE", "ROCR_VISIBLE", "HIP_VISIBLE",
)  # fmt: skip

Argument = str | bytes | Path


class Done(NamedTuple):
    """What the outside sees of a command that is over."""

    exit_code: int
    stdout: bytes
    stderr: bytes
    seconds: float

    @property
    def said(self) -> str:
        """Return standard error as text, in which nothing is lost."""
        return self.stderr.decode("utf-8", "surrogateescape")


class Shell:
    """An empty folder and an environment of which every variable is known."""

    def __init__(self, folder: Path, mark: str) -> None:
        self.folder = folder
        self.mark = mark
        kept = {name: value for name, value in os.environ.items() if not name.startswith(FOREIGN)}
        self.environ = {**kept, "PYTHONPATH": SOURCES, MARK: mark, "HOME": str(folder / "home")}
        self.environ.pop("XDG_CONFIG_HOME", None)

    def script(self, text: str, name: str = "train.py") -> Path:
        """Write a script into the folder."""
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, "utf-8")
        return path

    def run(self, *arguments: Argument, seconds: float = 60.0, **environ: str) -> Done:
        """Run `echelon run` with these arguments to its end."""
        began = time.monotonic()
        with self.start(*arguments, **environ) as process:
            try:
                stdout, stderr = process.communicate(timeout=seconds)
            except subprocess.TimeoutExpired:
                process.kill()
                stdout, stderr = process.communicate()
                said = f"{stdout[-2000:]!r}\n{stderr[-2000:]!r}"
                raise AssertionError(f"it still ran after {seconds:g} s\n{said}") from None
        return Done(process.returncode, stdout, stderr, time.monotonic() - began)

    def fork(self, *arguments: Argument, seconds: float = 120.0, **environ: str) -> Done:
        """Do what `run` does where no rank starts, or the start is not what is tested: for a fifth of the time."""
        began = time.monotonic()
        words = ["-m", "echelon", "run", *map(os.fsdecode, arguments)]
        done = warm.run_for_bytes(words, cwd=self.folder, environ={**self.environ, **environ}, timeout=seconds)
        return Done(done.returncode, done.stdout, done.stderr, time.monotonic() - began)

    @contextlib.contextmanager
    def start(
        self, *arguments: Argument, stdout: int = subprocess.PIPE, stderr: int = subprocess.PIPE, **environ: str
    ) -> Iterator[subprocess.Popen[bytes]]:
        """Start `echelon run` with these arguments and let it run, until the block ends at the latest."""
        with subprocess.Popen(
            [sys.executable, "-m", "echelon", "run", *arguments],
            cwd=self.folder,
            env={**self.environ, **environ},
            stdin=subprocess.DEVNULL,
            stdout=stdout,
            stderr=stderr,
            preexec_fn=hear_interrupts,
        ) as process:
            try:
                yield process
            finally:
                if process.poll() is None:
                    process.kill()

    def files(self, pattern: str) -> list[Path]:
        """Return the files of the folder whose names fit, in order."""
        return sorted(self.folder.glob(pattern))

    def log(self, rank: int, attempt: int = 0) -> bytes:
        """Return the log of a rank of the one run of this folder."""
        (path,) = self.files(f"echelon-runs/*/logs/attempt-{attempt}/rank-{rank}.log")
        return path.read_bytes()

    def processes(self) -> list[str]:
        """Return what still runs of all that this shell has started: process id and command line."""
        return [f"{pid} {_command_line(pid)}" for pid in self._living()]

    def kill_all(self) -> None:
        """End whatever is left."""
        for pid in self._living():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def _living(self) -> list[int]:
        wanted = f"{MARK}={self.mark}".encode()
        return [pid for pid in _all_processes() if wanted in _environment(pid)]


def _all_processes() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def _environment(pid: int) -> Sequence[bytes]:
    try:
        return Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return ()  # it has ended


def _command_line(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode("utf-8", "replace")
    except OSError:
        return "(it has ended)"


def wait_until(condition: Callable[[], object], *, seconds: float = 20.0) -> None:
    """Wait for a condition; fail when it does not come true in time."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"still not true after {seconds:g} s"
        time.sleep(0.02)


def read_variables(path: Path) -> Mapping[str, str]:
    """Read an environment that a rank has written as NUL-separated bytes."""
    words = path.read_bytes().decode("utf-8", "surrogateescape").split("\0")
    return dict(word.split("=", 1) for word in words if word)


@contextlib.contextmanager
def opened_in(tmp_path: Path) -> Iterator[Shell]:
    """Give a test its shell; whatever still runs 5 s after it fails it."""
    folder = tmp_path / "work"
    folder.mkdir()
    shell = Shell(folder, mark=str(tmp_path))
    yield shell
    try:
        wait_until(lambda: not shell.processes(), seconds=5.0)
    except AssertionError:
        left = shell.processes()
        shell.kill_all()
        pytest.fail(f"processes were left behind: {left}")
