"""Start `echelon run` as a user does, look into its run directory, and find whatever it may have left behind."""

import array
import fcntl
import json
import os
import signal
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from tests import warm

ECHELON: tuple[str, ...] = (sys.executable, "-m", "echelon")
PATIENCE_SECONDS = 60.0


def hear_interrupts() -> None:
    """Undo what a shell does to background jobs, and nohup: a test run may be either, and both ignore signals."""
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)


class Run:
    """One `echelon run` that goes on in the background."""

    def __init__(
        self,
        folder: Path,
        *arguments: str,
        environ: Mapping[str, str] | None = None,
        before: tuple[str, ...] = (),
        is_forked: bool = False,
    ) -> None:
        """Start it; `is_forked` forks all its processes, which nothing finds by their variables (tests/warm)."""
        folder.mkdir(parents=True, exist_ok=True)
        program = ECHELON
        if is_forked:
            program = (f"{folder}.echelon",)
            warm.write_program(Path(program[0]))
        self.directory = folder / "run"
        self.process = subprocess.Popen(
            [*before, *program, "run", "--run-dir", str(self.directory), *arguments],
            cwd=folder,
            env=dict(environ if environ is not None else os.environ),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
            preexec_fn=hear_interrupts,
        )

    def events(self, kind: str = "") -> list[dict[str, Any]]:
        """Return the events so far, of one kind or all."""
        try:
            lines = (self.directory / "events.jsonl").read_text().splitlines()
        except FileNotFoundError:
            return []
        rows = [json.loads(line) for line in lines if line.endswith("}")]
        return [row for row in rows if kind in ("", row["event"])]

    @property
    def supervisor(self) -> int:
        """The process of the last supervisor; that of the command keeps it."""
        return int(self.events("supervisor")[-1]["pid"])

    def plan(self) -> dict[str, Any]:
        """Return the plan as the run directory holds it."""
        plan: dict[str, Any] = json.loads((self.directory / "plan.json").read_text())
        return plan

    def until(self, met: Callable[[], bool], what: str, *, seconds: float = PATIENCE_SECONDS) -> None:
        """Wait for something to be so while the run goes on."""
        deadline = time.monotonic() + seconds
        while not met():
            if self.process.poll() is not None and not met():
                raise AssertionError(f"the run ended before {what}: {self.finish()}")
            if time.monotonic() > deadline:
                raise AssertionError(f"waited {seconds} s for {what}: {self.events()}")
            time.sleep(0.01)

    def until_started(self, num_ranks: int, *, attempt: int = 0) -> None:
        """Wait until the supervisor tells that the ranks of an attempt have started; they may be far by then."""
        self.until(
            lambda: sum(event["attempt"] == attempt for event in self.events("started")) == num_ranks,
            f"{num_ranks} ranks started",
        )

    def shown_bytes(self) -> int:
        """Return how much standard output has to read; nothing is taken from it."""
        assert self.process.stdout
        size = array.array("i", [0])
        fcntl.ioctl(self.process.stdout, termios.FIONREAD, size)
        return size[0]

    def finish(self, *, seconds: float = PATIENCE_SECONDS) -> tuple[int, str, str]:
        """Return exit code, standard output and standard error once it has ended."""
        out, err = self.process.communicate(timeout=seconds)
        return self.process.returncode, out.decode(), err.decode()

    def left_behind(self, *, seconds: float) -> list[str]:
        """Return the command lines that are still there after some time: the run's own, its ranks' and theirs."""
        return left_behind(str(self.directory), seconds=seconds)

    def kill(self, pid: int, number: int = signal.SIGKILL) -> None:
        os.kill(pid, number)


def left_behind(word: str, *, seconds: float = 5.0) -> list[str]:
    """Return the living processes that have a word in their command lines or variables still after some time."""
    deadline = time.monotonic() + seconds
    while (left := _marked(word.encode())) and time.monotonic() < deadline:
        time.sleep(0.02)
    return left


def _marked(word: bytes) -> list[str]:
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                command, environ = (entry / "cmdline").read_bytes(), (entry / "environ").read_bytes()
                state = (entry / "stat").read_text().rpartition(")")[2].split()[0]
            except OSError:
                continue
            if state not in "ZX" and (word in command or word in environ):
                found.append(f"{entry.name} {state} {command.replace(bytes(1), b' ').decode(errors='replace')}")
    return found
