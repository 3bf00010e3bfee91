"""The last collectives of all ranks tell which rank left which, and nothing that is not certain."""

from typing import Any

import pytest

from echelon.launch import last_calls
from echelon.node.call_page import FAILED, RETURNED, RUNNING


def page(*calls: tuple[Any, ...], loops: tuple[tuple[Any, ...], ...] = (), first: int = 1) -> dict[str, Any]:
    """Return a page with calls: number, kind, line, state, tensor, group."""
    rows = []
    for ordinal, call in enumerate(calls, first):
        number, kind, line, state, tensor, group = (*call, *("", "", RETURNED, "", "")[len(call) - 1 :])
        rows.append([ordinal, number, state, line, kind, group, "train.py", tensor])
    return {"calls": rows, "loops": [[1, *loop, "train.py"] for loop in loops], "note": ""}


def compare(*pages: dict[str, Any], positions: dict[int, str] | None = None, ended: tuple[int, ...] = ()) -> str:
    called = dict(enumerate(pages))
    return last_calls.compare(last_calls.read(called, positions or {}, dict.fromkeys(ended, 1.0)))


SUM = (41, "all_reduce", 34, RUNNING, "float32 [128, 10]")
BEFORE = (40, "barrier", 38)


def test_example_of_the_docs() -> None:
    """Three ranks have fewer batches, and are one call behind."""
    ahead = page(BEFORE, SUM, loops=((10, 30, 0, 1),))
    behind = page((40, "barrier", 38, RUNNING), loops=((7, 30, 1, 1),))
    assert compare(ahead, behind, behind, behind) == (
        "rank 0 is in all_reduce no. 41 of float32 [128, 10] at train.py:34, in batch 10; "
        "ranks 1 to 3 are in barrier no. 40 at train.py:38; "
        "batches of the loop at train.py:30: rank 0 had 10 so far, ranks 1 to 3 had 7"
    )


def test_first_difference_counts() -> None:
    """Ranks that go on after a difference differ later, too."""
    one = page((1, "barrier", 1), (2, "all_reduce", 2, RETURNED, "float32 [3]"), (3, "gather", 3, FAILED))
    other = page((1, "barrier", 1), (2, "all_reduce", 2, RETURNED, "float64 [3]"), (3, "barrier", 4, FAILED))
    assert compare(one, other) == (
        "call no. 2 differs between ranks: rank 0 has called all_reduce no. 2 of float32 [3] at train.py:2; "
        "rank 1 has called all_reduce no. 2 of float64 [3] at train.py:2"
    )


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ((5, "all_reduce", 7, RETURNED, "float32 [2, 3]"), (5, "all_reduce", 9, RETURNED, "float32 [6]")),
        ((5, "broadcast", 7, RETURNED, "float32 [6] from rank 2"), (5, "broadcast", 7, RETURNED, "float32 [6]")),
        ((5, "all_gather", 7, RETURNED, "float32 [2]"), (5, "all_gather", 7, RETURNED, "float32 [9]")),
        ((0, "send", 7), (0, "recv", 8)),
        ((5, "barrier", 7, RETURNED, "", "1"), (5, "gather", 8, RETURNED, "", "2")),
        ((0, "backward", 7), (5, "barrier", 8)),
    ],
)
def test_calls_that_go_together(one: tuple[Any, ...], other: tuple[Any, ...]) -> None:
    """Equal sizes, kinds with several sizes, calls without a number, and those of two groups are no difference."""
    assert compare(page(one), page(other)) == ""


def test_call_after_a_failed_one() -> None:
    """What a rank calls while it ends is not what the others wait for; after an error that it survived, it is."""
    ends = page((1, "all_reduce", 1, FAILED), (2, "barrier", 9, RUNNING))
    assert compare(ends, page((1, "all_reduce", 1, FAILED))) == "ranks 0 and 1 are in all_reduce no. 1 at train.py:1"
    survives = page((1, "all_reduce", 1, FAILED), (2, "barrier", 9), (3, "barrier", 9, RUNNING))
    assert "rank 0 is in barrier no. 3" in compare(survives, page((2, "barrier", 9)))


def test_rank_without_a_call() -> None:
    """Where the rank was is told if it is known, else nothing."""
    waits = page((1, "barrier", 9, RUNNING))
    told = compare(waits, {}, positions={1: "is at train.py:3 (read())"})
    assert told == "rank 0 is in barrier no. 1 at train.py:9; rank 1 is at train.py:3 (read())"
    assert compare(waits, {}, ended=(1,)).endswith("; rank 1 has ended")
    assert compare(waits, {}) == "rank 0 is in barrier no. 1 at train.py:9"
    assert compare({}, {}) == ""


def test_many_ranks_are_few_words() -> None:
    """A thousand ranks at a thousand places are six places and a number."""
    pages = [page((3, "barrier", line, RUNNING)) for line in range(1000)]
    assert len(compare(*pages)) < 400
    assert compare(*pages).endswith("; 994 more places")
    same = [page((3, "barrier", 1, RUNNING))] * 1000
    assert compare(*same) == "ranks 0 to 999 are in barrier no. 3 at train.py:1"
