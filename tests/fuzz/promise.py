"""The promise that every refusal keeps, and the odd words of which people and machines make command lines."""

import contextlib
import io
import os
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple
from unittest import mock

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from tests.tiers import pick

from echelon.cli import main

FACTOR = pick(0.5, all=10)
SIGNS = st.characters(blacklist_categories=("Cc", "Cs"), blacklist_characters="/")
NUMBERS = (
    "", "0", "-1", "+1", "1", "2", "7", "1.5", "1e9", "0x10", "²", "٣", "½", " 1", "1 ", "1_000", "NaN", "inf", "1:2",
    "2:1", "99999999", "9" * 5000, "9" * 400, "0" * 5000 + "1", "1e999", "auto", "gpu", "-", "--", "=", ",", "\udcff",
    "a\nb", "\x1b[31m", "60G", "²G", "9" * 5000 + "G", "1:70", "1-25", "9" * 5000 + "h", "1" * 30 + "-" + "1" * 30,
    "99999999d", "1,2,²", "0-99999999999",
)  # fmt: skip
"""Where a number, a time, a size or a list of numbers is wanted."""
NODE_LISTS = (
    "", "n1", "n[1-2]", "n[1-", "n1-2]", "n[[1]]", "n[5-1]", "n[1-2", "n[]", "[]", "[1-2]", ",", ",,n1", "n[01-2]",
    "n[0-999999999999]", "n[0-9999]m[0-9999]", "n[1-2]," * 5000, "n[" + "9" * 5000 + "]", "n[²-³]", "ñ[1-2]", "n[-1]",
    "n[1--2]", "\udcff", "n" * 5000, "n[1-2]\n", "[" * 5000, "n[1-262144],n[1-2]",
)  # fmt: skip
COUNTS = (
    "",
    "1",
    "1(x2)",
    "2(x1),1",
    "1(x",
    "1(x2))",
    "(x2)",
    "1(x999999999999)",
    "²",
    "1(x²)",
    "9" * 5000,
    "-1(x2)",
    "1,",
    "0",
)
ERROR, HINT = "echelon: error: ", "  hint: "


def profile(examples: int) -> settings:
    """Return how many examples are tried; the same each time, so that a failure is seen again."""
    unhealthy = [HealthCheck.function_scoped_fixture, HealthCheck.too_slow, HealthCheck.filter_too_much]
    return settings(
        max_examples=int(examples * FACTOR),
        deadline=None,
        derandomize=True,
        database=None,
        suppress_health_check=unhealthy,
    )


def odd(words: tuple[str, ...] = NUMBERS) -> st.SearchStrategy[str]:
    return st.sampled_from(words) | st.integers().map(str) | st.text(SIGNS, max_size=8)


class Answer(NamedTuple):
    """What a command says and returns."""

    exit_code: int
    out: str
    said: str


@contextlib.contextmanager
def surrounded(folder: Path, environ: Mapping[str, str]) -> Iterator[None]:
    """Stand in a folder, with these variables, without Slurm's programs; leave everything as it was."""
    before, path = Path.cwd(), list(sys.path)
    plain = {"HOME": str(folder / "home"), "PATH": str(folder / "nothing"), **environ}
    os.chdir(folder)
    try:
        with mock.patch.dict(os.environ, plain, clear=True):
            yield
    finally:
        os.chdir(before)
        sys.path[:] = path


def answer(folder: Path, arguments: list[str], environ: Mapping[str, str]) -> Answer:
    """Run a command inside this process: what is a mistake of echelon itself is raised."""
    out, said = (io.TextIOWrapper(io.BytesIO(), "utf-8", "surrogateescape") for _ in range(2))
    with surrounded(folder, environ), contextlib.redirect_stdout(out), contextlib.redirect_stderr(said):
        exit_code = main(arguments)
        out.flush()
        said.flush()
    written = [stream.buffer.getvalue().decode("utf-8", "replace") for stream in (out, said)]  # type: ignore[attr-defined]
    return Answer(exit_code, *written)


def keep(folder: Path, arguments: list[str], environ: Mapping[str, str] | None = None) -> Answer:
    """Run a command, check the promise, and return what it said."""
    given = answer(folder, arguments, environ or {})
    judge(given, arguments)
    return given


def judge(given: Answer, arguments: object) -> None:
    """Assert: 0, 1 or 2; a refusal is one line with a reason, and at most one with a repair."""
    case = f"{arguments!r:.400} ended with {given.exit_code} and said {given.said:.1000}"
    assert given.exit_code in (0, 1, 2), case
    assert "Traceback" not in given.said + given.out, case
    assert "a mistake in echelon" not in given.said, case
    ours = [line for line in given.said.splitlines() if not line.startswith("    ")]  # those show a line of the file
    if given.exit_code == 2:
        assert 1 <= len(ours) <= 2, case
        assert ours[0].startswith(ERROR), case
        assert len(ours[0]) > len(ERROR) + 5, case
        assert all(line.startswith(HINT) for line in ours[1:]), case
    assert all(len(line) < 5200 for line in ours), case
