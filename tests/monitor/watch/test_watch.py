"""`echelon watch` as a person runs it: in a terminal on a run that goes on, once, as data, and on wrong names."""

import fcntl
import json
import os
import pty
import select
import struct
import subprocess
import sys
import termios
import time
from pathlib import Path

import pyte
import pytest
from tests import warm
from tests.monitor.watch import fleet
from tests.runs import ECHELON

COLUMNS, ROWS = 80, 24
TRAIN = """
import time, torch
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(4000):
    model(torch.ones(8, 4)).pow(2).mean().backward()
    optimizer.step()
    optimizer.zero_grad()
    time.sleep(0.01)
"""


class Terminal:
    """The command in a terminal of 80 × 24, whose screen can be read."""

    def __init__(self, folder: Path, *arguments: str) -> None:
        self.pid, self._end = pty.fork()
        if self.pid == 0:
            os.chdir(folder)
            os.environ["TERM"] = "xterm-256color"
            os.execv(sys.executable, [*ECHELON, "watch", *arguments])
        fcntl.ioctl(self._end, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
        self._screen = pyte.Screen(COLUMNS, ROWS)
        self._stream = pyte.ByteStream(self._screen)
        self.num_bytes = 0

    def until(self, *words: str, seconds: float = 60.0) -> str:
        """Return the screen once it shows all words."""
        deadline = time.monotonic() + seconds
        while not all(word in "\n".join(self._screen.display) for word in words):
            assert time.monotonic() < deadline, "\n".join(self._screen.display)
            if select.select([self._end], [], [], 0.1)[0]:
                data = os.read(self._end, 1 << 16)
                self.num_bytes += len(data)
                self._stream.feed(data)
        return "\n".join(self._screen.display)

    def press(self, keys: bytes) -> None:
        os.write(self._end, keys)

    def wait(self) -> int:
        """Return the exit code."""
        while True:
            try:
                if not os.read(self._end, 1 << 16):
                    break
            except OSError:
                break  # the other end is closed
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])


def watch(folder: Path, *arguments: str) -> "subprocess.CompletedProcess[str]":
    line = [*ECHELON, "watch", *arguments]
    return subprocess.run(line, cwd=folder, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL)


def test_run_that_goes_on(tmp_path: Path) -> None:
    """Its steps go up, its rank can be opened, and q leaves the run as it is."""
    (tmp_path / "train.py").write_text(TRAIN)
    environ = {**os.environ, "OMP_NUM_THREADS": "1"}
    warm.write_program(tmp_path / "echelon")
    line = [str(tmp_path / "echelon"), "run", "--run-dir", "run", "-n", "2", "--scale", "off", "train.py"]
    with subprocess.Popen(line, cwd=tmp_path, env=environ, stderr=subprocess.DEVNULL) as run:
        try:
            while not (tmp_path / "run" / "samples.jsonl").exists():
                assert run.poll() is None
                time.sleep(0.1)
            terminal = Terminal(tmp_path, "run")
            terminal.until("running", "2 ranks on 1 node", "steps/s", "tenths of a rank's time")
            terminal.press(b"\r")
            terminal.until("computing", "alive")
            terminal.press(b"\r")
            terminal.until("backward", "optimizer")
            terminal.press(b"q")
            assert terminal.wait() == 0
            assert run.poll() is None
            told = json.loads(watch(tmp_path, "--json", "run").stdout)
            assert (told["format"], told["status"], told["num_ranks"]) == (1, "running", 2)
            assert told["steps"] > 0
        finally:
            run.terminate()


def test_played_again(tmp_path: Path) -> None:
    fleet.write(tmp_path / "run", num_nodes=2, ranks_per_node=4, samples=50)
    terminal = Terminal(tmp_path, "--replay", "--speed", "100", "run")
    terminal.until("played again", "step 300")
    terminal.until("step 3000")
    terminal.press(b"q")
    assert terminal.wait() == 0


def test_once_and_by_the_number_of_the_job(tmp_path: Path) -> None:
    fleet.write(tmp_path / "echelon-runs" / "20261128-081218-train-8f65", num_nodes=2, ranks_per_node=4, slow=5)
    done = watch(tmp_path, "4711")
    assert done.returncode == 0
    assert "train-8f65 · unknown" in done.stdout
    assert ">nid005001 5!55" in done.stdout
    assert "\033" not in done.stdout


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["nothing"], "there is no run nothing"),
        (["run", "run"], "watch shows one run, not 2"),
        (["--replay", "--speed", "0", "run"], "--speed 0 is not a number above 0"),
        (["--replay", "run"], "--replay needs a terminal"),
        (["--in-job", "alone"], "alone is no run of a Slurm job"),
        (["newer"], "has format 2, and this echelon reads formats up to 1"),
    ],
)
def test_wrong_input(tmp_path: Path, arguments: list[str], words: str) -> None:
    fleet.write(tmp_path / "run", num_nodes=1, ranks_per_node=1)
    newer = fleet.write(tmp_path / "newer", num_nodes=1, ranks_per_node=1) / "samples.jsonl"
    newer.write_text(newer.read_text().replace('"format": 1', '"format": 2'))
    (fleet.write(tmp_path / "alone", num_nodes=1, ranks_per_node=1) / "plan.json").unlink()
    done = watch(tmp_path, *arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert words in done.stderr
    assert "hint: " in done.stderr


def test_run_that_has_not_started(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "job.sh").touch()
    done = watch(tmp_path, "run")
    assert (done.returncode, done.stderr) == (0, "")
    assert "not started" in done.stdout
