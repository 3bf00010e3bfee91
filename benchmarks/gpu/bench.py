"""Where rows are run: the Python, the device, the folder and the time that is left."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).parents[2]
PROGRAMS = Path(__file__).parent / "programs"
FOREIGN = ("SLURM_", "ECHELON_", "TORCHELASTIC_")
ALL_SECONDS = 450.0
"""For all rows together: under eight minutes, with what Python takes to start and to end."""
ROW_SECONDS = 100.0


@dataclass(frozen=True, slots=True)
class Done:
    """The output of a command."""

    code: int
    out: str
    err: str

    def losses(self) -> list[float]:
        return [float(text) for text in re.findall(r"^step \d+ loss (\S+)", self.out, re.MULTILINE)]

    def by_step(self) -> dict[int, float]:
        """Return the loss of each step; that of the last time, where a step was computed twice."""
        found = re.findall(r"^step (\d+) loss (\S+)", self.out, re.MULTILINE)
        return {int(step): float(loss) for step, loss in found}

    def ends(self) -> list[tuple[int, float]]:
        """Return the number and the time of the end of each step, in their order."""
        found = re.findall(r"^step (\d+) loss \S+ at (\S+)", self.out, re.MULTILINE)
        return [(int(step), float(at)) for step, at in found]

    def weights(self) -> str:
        return "".join(re.findall(r"^weights (\S+)", self.out, re.MULTILINE))

    def milliseconds(self) -> float:
        """Return the median of a step; 0 where none was printed."""
        return float(next(iter(re.findall(r"^median (\S+) ms", self.out, re.MULTILINE)), 0.0))

    def line(self, word: str) -> str:
        """Return the first line of stderr with a word in it, without our name; empty where there is none."""
        lines = [line.removeprefix("echelon: ") for line in self.err.splitlines() if word in line]
        return lines[0].strip() if lines else ""


@dataclass(slots=True)
class Bench:
    """Starts programs beside each other's results."""

    python: str
    folder: Path
    device: str
    """What programs are told: "cuda" or, for a look at the program itself, "cpu"."""
    num_devices: int
    missing: tuple[str, ...] = ()
    log: Path | None = None
    """The file that gets each command with all that it printed."""
    _ends: float = field(default_factory=lambda: time.monotonic() + ALL_SECONDS)
    _kept: dict[tuple[str, ...], Done] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _log_lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def seconds_left(self) -> float:
        return self._ends - time.monotonic()

    def alone(self, *arguments: str) -> Done:
        """Run train.py by Python alone, once for each set of arguments."""
        words = [self.python, str(PROGRAMS / "train.py"), "--device", self.device, *arguments]
        with self._lock:
            if arguments not in self._kept:
                self._kept[arguments] = self._start(words)
            return self._kept[arguments]

    def script(self, path: Path, *arguments: str) -> Done:
        """Run a script by Python alone."""
        return self._start([self.python, str(path), *arguments])

    def train(self, options: tuple[str, ...], *arguments: str, more: Mapping[str, str] = {}) -> Done:
        """Run train.py by `echelon run`; `more` are variables of the environment."""
        return self.run(options, PROGRAMS / "train.py", "--device", self.device, *arguments, more=more)

    def run(self, options: tuple[str, ...], script: Path, *arguments: str, more: Mapping[str, str] = {}) -> Done:
        """Run a script by `echelon run`."""
        return self._start([self.python, "-m", "echelon", "run", *options, str(script), *arguments], more)

    @contextmanager
    def busy(self) -> Iterator[Callable[[], bool]]:
        """Keep a device busy for a while; what is given says whether it still is."""
        process = subprocess.Popen([self.python, str(PROGRAMS / "busy.py"), self.device], cwd=self.folder)
        try:
            yield lambda: process.poll() is None
        finally:
            process.kill()
            process.wait()

    def echelon(self, *words: str, folder: Path | None = None) -> Done:
        """Run another command of echelon."""
        return self._start([self.python, "-m", "echelon", *words], folder=folder)

    def _start(self, words: list[str], more: Mapping[str, str] = {}, folder: Path | None = None) -> Done:
        environ = {name: value for name, value in os.environ.items() if not name.startswith(FOREIGN)}
        environ |= {"PYTHONPATH": str(ROOT / "src"), "HF_HUB_OFFLINE": "1", **more}
        began = time.monotonic()
        limit = max(1.0, min(ROW_SECONDS, self.seconds_left))
        try:
            done = subprocess.run(
                words, cwd=folder or self.folder, env=environ, capture_output=True, text=True, timeout=limit
            )
            ended = Done(done.returncode, done.stdout, done.stderr)
        except subprocess.TimeoutExpired as error:
            ended = Done(124, _text(error.stdout), f"{_text(error.stderr)}\nit took longer than {limit:.0f} s")
        self._note(words, ended, time.monotonic() - began)
        return ended

    def _note(self, words: list[str], ended: Done, seconds: float) -> None:
        if self.log is not None:
            head = f"$ {shlex.join(words)}\n[exit code {ended.code} after {seconds:.1f} s]\n"
            with self._log_lock, self.log.open("a", encoding="utf-8") as file:
                file.write(f"{head}{ended.out}{ended.err}\n")


def _text(said: bytes | str | None) -> str:
    return said.decode(errors="replace") if isinstance(said, bytes) else said or ""


def this_python() -> str:
    """Return the Python that runs this program, which is the one that `make gpu PYTHON=…` names."""
    return sys.executable
