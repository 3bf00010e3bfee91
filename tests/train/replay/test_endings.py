"""Ranks are killed in the last fifth of an epoch and of the training: the losses are those of an undisturbed run.

Each of ten scripts runs on 2, 3 and 4 ranks in the tier "soak", with two kills each: 60 kills.
"""

import os
import random
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tests.runs import Run
from tests.tiers import pick

SCRIPTS = Path(__file__).parent / "endings"
NAMES = sorted(path.stem for path in SCRIPTS.glob("[a-z]*.py"))
CASES = pick([("two_networks", 2)], soak=[(name, num_ranks) for name in NAMES for num_ranks in (2, 3, 4)])
NUM_EPOCHS = 4
LAST_FIFTH = 0.8
CLOSE = 1e-6
ON_DISK, IN_MEMORY = "5steps", "1h"

pytestmark = [pytest.mark.tier("all"), pytest.mark.timeout(600)]


class Watched:
    """A run whose lines are read as they come."""

    def __init__(self, folder: Path, *line: str, is_in_memory: bool) -> None:
        environ = {**os.environ, "OMP_NUM_THREADS": "1"}
        if not is_in_memory:
            environ["ECHELON_MEMORY_FOLDER"] = ""
        every = IN_MEMORY if is_in_memory else ON_DISK
        self.run = Run(folder, "--checkpoint-every", every, *line, environ=environ)
        assert self.run.process.stdout
        self._pipe = self.run.process.stdout.fileno()
        os.set_blocking(self._pipe, False)
        self._text = b""
        self._seen = 0
        """The bytes that were printed before the latest kill."""

    def has_printed(self, line: str) -> bool:
        """Read what is there, and return whether this line was printed since the last kill."""
        try:
            while portion := os.read(self._pipe, 1 << 16):
                self._text += portion
        except BlockingIOError:
            pass
        return line.encode() in self._text[self._seen :]

    def kill_behind(self, line: str, chance: random.Random, rank: "int | None" = None) -> bool:
        """Kill a rank, or any, a moment after this line; return whether the training was still going on."""
        words = key_of(line)
        while not self.has_printed(words):
            if self.run.process.poll() is not None:
                return False
            time.sleep(0.002)
        started = self.run.events("started")
        of_attempt = [event for event in started if event["attempt"] == started[-1]["attempt"]]
        victims = [int(event["pid"]) for event in of_attempt if rank in (None, event["rank"])]
        time.sleep(chance.uniform(0, 0.04))
        self._seen = len(self._text)
        try:
            self.run.kill(chance.choice(victims))
        except ProcessLookupError:
            return False
        return True

    def finish(self) -> tuple[str, str]:
        """Return all lines that were printed, and what was said."""
        code, rest, err = self.run.finish(seconds=240)
        assert code == 0, err
        return self._text.decode() + rest, err


def key_of(line: str) -> str:
    """Return the words in front of the first number with a fraction: they tell one line from another."""
    return re.split(r"-?\d+\.\d+", line)[0]


def rows(text: str) -> dict[str, list[float]]:
    """Return the numbers of each line; a line that is printed again counts."""
    return {key_of(line): [float(one) for one in re.findall(r"-?\d+\.\d+e[+-]\d+", line)] for line in text.splitlines()}


def assert_same(text: str, wanted: str) -> None:
    """Assert that the lines are those of an undisturbed run, up to rounding."""
    mine, others = rows(text), rows(wanted)
    assert set(mine) == set(others)
    wrong = {key: (mine[key], one) for key, one in others.items() if mine[key] != pytest.approx(one, rel=CLOSE)}
    assert not wrong


def undisturbed(folder: Path, name: str, num_ranks: int) -> str:
    """Return the lines of a run that nobody disturbs."""
    folder.mkdir()
    line = [sys.executable, "-m", "echelon", "run", "-n", str(num_ranks), "--checkpoint-every", IN_MEMORY]
    done = subprocess.run(
        [*line, str(SCRIPTS / f"{name}.py")], cwd=folder, check=False, capture_output=True, text=True, timeout=240
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize(("name", "num_ranks"), CASES)
def test_killed_at_the_end_of_an_epoch_and_of_the_training(tmp_path: Path, name: str, num_ranks: int) -> None:
    """Whatever is printed afterwards is what is printed without a kill, from the disk and from memory."""
    seed = NAMES.index(name) * 10 + num_ranks
    chance = random.Random(seed)
    wanted = undisturbed(tmp_path / "undisturbed", name, num_ranks)
    lines = wanted.splitlines()
    of_epoch = (chance.randrange(NUM_EPOCHS - 1) + chance.uniform(LAST_FIFTH, 1)) / NUM_EPOCHS
    places = [int(len(lines) * share) for share in (of_epoch, chance.uniform(LAST_FIFTH, 1))]
    script = str(SCRIPTS / f"{name}.py")
    watched = Watched(tmp_path / "killed", "-n", str(num_ranks), script, is_in_memory=seed % 2 == 0)
    num_kills = sum(watched.kill_behind(lines[place], chance) for place in places)
    text, err = watched.finish()
    print(f"{name} on {num_ranks} ranks, {num_kills} kills", re.findall(r"continues after.*?;", err))
    assert num_kills >= 1
    assert_same(text, wanted)


@pytest.mark.parametrize("num_ranks", [3, 4])
def test_killed_within_a_step_of_mnist(tmp_path: Path, num_ranks: int) -> None:
    """Dropout, Adadelta and an evaluation go on from the memory of the nodes with the same losses."""
    wanted = undisturbed(tmp_path / "undisturbed", "mnist", num_ranks)
    watched = Watched(tmp_path / "killed", "-n", str(num_ranks), str(SCRIPTS / "mnist.py"), is_in_memory=True)
    assert watched.kill_behind(wanted.splitlines()[25], random.Random(num_ranks), rank=1)
    text, err = watched.finish()
    assert "from the memory of the nodes" in err
    assert_same(text, wanted)
