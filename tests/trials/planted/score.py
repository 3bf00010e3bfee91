"""The score of `echelon prove` on planted bugs: found or not, named or not, and no false alarm."""

import json
import os
import subprocess
import sys
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib  # pytest itself needs it there

HERE = Path(__file__).parent
BUGS, CORRECT = HERE / "bugs", HERE / "correct"
NOT_WRONG = ("equal to the bit", "equal within rounding")


@dataclass(frozen=True, kw_only=True)
class Case:
    """A mistake: what goes wrong first, words of its cause, and the thread that it is from."""

    name: str
    kind: str
    thread: str
    tensor: str
    cause: str
    missed: str = ""
    """Why it is not found, where that is so."""


@dataclass(frozen=True, kw_only=True)
class Said:
    """What `echelon prove` says of a script."""

    name: str
    is_bug: bool
    verdict: str
    why: str
    meaning: str
    tensor: str

    @property
    def is_false_alarm(self) -> bool:
        """Whether a correct script is not called equal."""
        return not self.is_bug and self.verdict not in NOT_WRONG

    def has_cause(self, case: Case) -> bool:
        """Whether its words are those of the cause."""
        return case.cause in f"{self.why}\n{self.meaning}"

    def finds(self, case: Case) -> bool:
        """Whether it says that something is wrong; an error must be one that names it."""
        return self.verdict == "WRONG" or (self.verdict == "error" and self.has_cause(case))

    def names(self, case: Case) -> bool:
        """Whether tensor and cause are right."""
        return self.finds(case) and self.has_cause(case) and case.tensor in f"{self.tensor}\n{self.why}"


def cases() -> dict[str, Case]:
    """Return all mistakes by the name of their script."""
    table = tomllib.loads((HERE / "cases.toml").read_text())
    return {name: Case(name=name, **row) for name, row in table.items()}


def scripts(names: Collection[str] = ()) -> list[Path]:
    """Return all scripts, or those of some names."""
    found = [path for folder in (BUGS, CORRECT) for path in sorted(folder.glob("*.py"))]
    return [path for path in found if not names or path.stem in names]


def said_of(wanted: Iterable[Path]) -> Iterator[Said]:
    """Prove scripts, from one warm process; yield what is said as it is known."""
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.trials.planted.warm", *(str(path) for path in wanted)],
        cwd=HERE.parents[2], env={**os.environ, "OMP_NUM_THREADS": "1"}, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    with process:
        assert process.stdout is not None
        for line in process.stdout:
            result = json.loads(line)
            path = Path(result.pop("script"))
            yield Said(name=path.stem, is_bug=path.parent == BUGS, **result)
