"""Runs of the scripts: each once, when the first test asks for it."""

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from tests import warm
from tests.conftest import FOREIGN

FOLDER = Path(__file__).parents[1] / "scripts"
RUN_SECONDS = 150
# gloo on a loaded machine sometimes fails or waits for ever as its ranks connect, under torchrun too
GLOO_FAILED = re.compile(r"time limit: --timeout|\[\S*gloo/\S+\.cc:\d+\]")


class Done(NamedTuple):
    """What one run left behind."""

    folder: Path
    returncode: int
    out: str
    err: str

    def steps(self) -> list[tuple[int, float]]:
        found = re.findall(r"^step (\d+)\b.*?\bloss (\S+)", self.out, re.MULTILINE)
        return [(int(step), float(loss)) for step, loss in found]

    def losses(self) -> list[float]:
        assert self.returncode == 0, f"exit code {self.returncode}\n{self.out[-500:]}\n{self.err[-3000:]}"
        steps = self.steps()
        assert [step for step, _ in steps] == list(range(len(steps)))
        return [loss for _, loss in steps]

    def files(self) -> list[str]:
        return sorted(str(path.relative_to(self.folder)) for path in self.folder.rglob("*") if path.is_file())


def start(
    path: Path, num_ranks: int, folder: Path, *more: str, name: str = "", environ: Mapping[str, str] | None = None
) -> Done:
    """Run a script to its end in a folder of that name; 0 ranks is Python alone."""
    name = name or "-".join([path.stem, str(num_ranks), *(word.strip("-") for word in more)])
    work = folder / name
    work.mkdir(parents=True, exist_ok=True)
    own = {name: value for name, value in os.environ.items() if not name.startswith(FOREIGN)}
    own = {**own, "OMP_NUM_THREADS": "1", **(environ or {})}
    words = [str(path), "model.pt"]
    if num_ranks:
        run = ["-m", "echelon", "run", "-n", str(num_ranks), "--timeout", str(RUN_SECONDS)]
        scale = [] if "--scale" in more else ["--scale", "data"]
        place = [] if "--resume" in more else ["--run-dir", str(folder / f"{name}-run")]
        words = [*run, *place, *scale, *more, *words]
    done = warm.run(words, cwd=work, environ=own, timeout=RUN_SECONDS + 30)
    return Done(work, done.returncode, done.stdout, done.stderr)


class Runs:
    """Runs of the scripts, each once for all tests that look at it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._done: dict[tuple[str, int], Done] = {}

    def get(self, name: str, num_ranks: int) -> Done:
        """Return a run on a number of ranks; 0 ranks is Python alone."""
        if (name, num_ranks) not in self._done:
            path = FOLDER / f"{name}.py"
            done = start(path, num_ranks, self.folder)
            if done.returncode and GLOO_FAILED.search(done.err):
                done = start(path, num_ranks, self.folder / "again")
            self._done[name, num_ranks] = done
        return self._done[name, num_ranks]

    def pair(self, name: str, num_ranks: int) -> tuple[Done, Done]:
        """Return Python alone, and the scaled run."""
        return self.get(name, 0), self.get(name, num_ranks)
