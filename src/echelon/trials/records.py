"""The folder of a benchmark: `bench.json` says what is measured and where each run is, also after all have ended."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from echelon.environment import regular_files
from echelon.errors import UsageError
from echelon.node import private
from echelon.trials.question import Question, Size

NAME = "bench.json"
FORMAT = 1
MOST_BYTES = 1 << 24


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchmarkStart:
    """One run of the benchmark."""

    num_ranks: int
    repeat: int
    """Counted from 1."""
    folder: str
    """Relative to that of the benchmark, as is the next one."""
    run: str
    """The run directory."""
    job: str = ""
    """The number of the Slurm job; empty: the run was started here."""
    failure: str = ""
    """Why there is no run directory; empty: there is one, or the job has not begun."""

    @staticmethod
    def name_of(num_ranks: int, repeat: int) -> str:
        return f"{num_ranks}-ranks-{repeat}"


def write(folder: str, question: Question, starts: Sequence[BenchmarkStart]) -> None:
    """Write the file, completely or not at all."""
    fields = {"format": FORMAT, "question": asdict(question), "runs": [asdict(start) for start in starts]}
    path = os.path.join(folder, NAME)
    private.write(path + ".part", json.dumps(fields, indent=1).encode())
    os.replace(path + ".part", path)


def read(folder: str) -> tuple[Question, tuple[BenchmarkStart, ...]]:
    """Return what was measured; raise UsageError for a folder without a benchmark, or with one that is newer."""
    path = os.path.join(folder, NAME)
    try:
        fields = json.loads(regular_files.read(path, most_bytes=MOST_BYTES))
        if not isinstance(fields, dict):
            raise TypeError("no object")
    except OSError as error:
        raise UsageError(
            f"{folder or repr('')} holds no benchmark: {path} cannot be read: {error.strerror}",
            hint="echelon bench scaling --read DIRECTORY   names the folder that the benchmark printed",
        ) from None
    except (ValueError, TypeError) as error:
        raise _foreign(path, error) from None
    if isinstance(fields.get("format"), int) and fields["format"] > FORMAT:
        raise UsageError(
            f"{path} has format {fields['format']}, and this echelon reads formats up to {FORMAT}",
            hint="use the echelon that made the benchmark, or a newer one",
        )
    try:
        return _question(fields["question"]), tuple(_start(each) for each in fields["runs"])
    except (ValueError, TypeError, KeyError) as error:
        raise _foreign(path, error) from None


def _question(fields: dict[str, Any]) -> Question:
    sizes = tuple(Size(**{name: int(size[name]) for name in ("num_ranks", "num_nodes")}) for size in fields["sizes"])
    if not all(isinstance(fields[name], str) for name in ("script", "mode", "timeout")):
        raise TypeError("a text is no text")
    numbers = {name: int(fields[name]) for name in ("num_steps", "warm_up", "num_repeats")}
    words = {name: tuple(map(str, fields[name])) for name in ("arguments", "options")}
    return Question(**{**fields, **numbers, **words, "sizes": sizes})


def _start(fields: dict[str, Any]) -> BenchmarkStart:
    start = BenchmarkStart(**fields)
    paths = (start.folder, start.run)
    if not all(isinstance(path, str) and not re.match(r"/|.*\.\.(/|$)", path) for path in paths):
        raise ValueError("a run lies outside of the folder")
    if not isinstance(start.num_ranks, int) or start.num_ranks < 1 or not isinstance(start.failure, str):
        raise TypeError("the number of ranks is no number")
    return start


def _foreign(path: str, error: Exception) -> UsageError:
    return UsageError(
        f"{path} was not written by echelon: {type(error).__name__} {error}",
        hint="echelon bench scaling --read DIRECTORY   names the folder that the benchmark printed",
    )
