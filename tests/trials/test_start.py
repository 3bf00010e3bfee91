"""`echelon bench start`: real starts, the parts of generated ones, and wrong lines."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.trials.lines import bench, is_one_error, missing_on_page

from echelon.cli import bench_start
from echelon.trials import start
from echelon.trials.question import Size
from echelon.trials.start import StartTimes

seconds = st.floats(0.0, 100.0)


@pytest.mark.parametrize("launch", ["warm", "exec"])
def test_parts_of_real_starts(tmp_path: Path, launch: str) -> None:
    """The parts add up to the time to the first all-reduce; only a warm start imports before its ranks."""
    done = bench(tmp_path, "start", "--ranks", "2", "--launch", launch, "--json")
    assert done.returncode == 0, done.stderr
    (row,) = json.loads(done.stdout)["starts"]
    assert (row["ranks"], row["nodes"]) == (2, 1)
    assert 0 < row["first_line_seconds"] < row["all_reduce_seconds"]
    assert sum(row["parts"].values()) == pytest.approx(row["all_reduce_seconds"], abs=0.01)
    assert (row["parts"]["import"] > 0) == (launch == "warm")
    assert list(tmp_path.iterdir()) == []


@given(seconds, seconds, seconds, seconds, seconds)
def test_parts_of_a_generated_start(before: float, imports: float, ranks: float, line: float, meeting: float) -> None:
    found = StartTimes(
        size=Size(num_ranks=1, num_nodes=1), begun=before, import_seconds=imports, ready=before + imports + ranks,
        first_line=before + imports + ranks + line, all_reduced=before + imports + ranks + line + meeting,
    )  # fmt: skip
    parts = [before, imports, ranks, line, meeting]
    assert list(found.parts.values()) == pytest.approx(parts, abs=1e-6)


def test_table_has_the_start_in_the_middle_and_the_range() -> None:
    size = Size(num_ranks=2, num_nodes=1)
    starts = [
        StartTimes(size=size, begun=1.0, import_seconds=0.0, ready=1.0, first_line=2.0, all_reduced=2.0 + more)
        for more in (4.0, 1.0, 2.0)
    ]
    row = start.text(starts).splitlines()[1]
    assert row.split("  ")[-1].strip() == "3.00 s to 6.00 s"
    assert "4.00 s" in row


WRONG = {
    ("train.py",): "takes no train.py", ("--ranks", "0"): "--ranks 0", ("--repeat", "x"): "--repeat x",
    ("--launch", "cold"): "--launch cold", ("--ranks", "1,2", "--scale", "data"): "no option --scale",
}  # fmt: skip


@pytest.mark.parametrize("words", WRONG, ids=" ".join)
def test_wrong_line_is_one_error(tmp_path: Path, words: tuple[str, ...]) -> None:
    done = bench(tmp_path, "start", *words)
    assert is_one_error(done, WRONG[words]), done


def test_page_names_each_option() -> None:
    assert missing_on_page(bench_start.OWN, "How long") == []
