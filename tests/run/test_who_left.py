"""A run that ends in a collective says which rank left which: both ranks, both calls, both lines."""

import json
import re
from pathlib import Path

import pytest
from tests import warm
from tests.tiers import some

from echelon.launch import last_calls

SCRIPT = Path(__file__).parent / "leaving.py"


def at(mark: str) -> str:
    """Return the place of the line with a comment."""
    number = next(
        n for n, text in enumerate(SCRIPT.read_text().splitlines(), 1) if text.endswith(f"# the line of {mark}")
    )
    return f"leaving.py:{number}"


def words(folder: Path, how: str, *options: str) -> str:
    """Return what a run of three ranks says first of its end."""
    command = ["-m", "echelon", "run", "-n", "3", "--scale", "off", *options, str(SCRIPT), how]
    done = warm.run(command, cwd=folder)
    assert done.returncode not in (0, 2), done.stderr
    assert "this is a mistake of echelon" not in done.stderr
    (told,) = re.findall(r"^echelon: rank .* failed first: (.*)$", done.stderr, re.MULTILINE)
    return str(told)


LAST = f"all_reduce no. 3 of float32 [4] at {at('the last call')}"
FIRST = f"all_reduce no. 2 of float32 [4] at {at('the first calls')}"


TOLD = {
    "late": f"rank 0 is at {at('computing')} (sum(range(10**12))  # the line of computing), "
    f"after {FIRST}; ranks 1 and 2 are in {LAST}",
    "uneven": f"call no. 5 differs between ranks: rank 0 is in backward no. 5 at {at('backward')}, in batch 3; … "
    f"all_reduce no. 5 of float32 [4] at {at('the last call')} … ; batches of the loop at "
    f"{at('the loop')}: rank 0 had 3 so far, ranks 1 and 2 had 2",
    "kind": f"call no. 3 differs between ranks: rank 1 is in barrier no. 3 at {at('another kind')}; "
    f"ranks 0 and 2 are in {LAST}",
    "shape": "call no. 3 differs between ranks: rank 1 is in all_reduce no. 3 of float32 [3, 5] at "
    f"{at('another shape')}; ranks 0 and 2 are in {LAST}",
    "early": f"rank 0 has ended after {FIRST}; ranks 1 and 2 are in {LAST}",
    "killed": f"; its last collective was {FIRST}",
    "exit": f"ended with exit code 3: its last collective was {FIRST}",
    "crashed": f"; it was at {at('a crash')} (ctypes.string_at(0)  # the line of a crash); "
    f"its last collective was {FIRST}",
}


@pytest.mark.parametrize("how", some(list(TOLD), 2, first=1))
def test_rank_that_left_the_others(tmp_path: Path, how: str) -> None:
    """What each rank called, where, and in which batch."""
    told = words(tmp_path, how).replace("have called", "are in")
    for part in TOLD[how].split(" … "):  # gloo may add tensors of two sizes, and then a rank goes on, or ends
        assert part in told, told


def test_parameters_without_a_gradient_have_names(tmp_path: Path) -> None:
    """DistributedDataParallel tells their indices alone; the line is the one that would have used them."""
    told = words(tmp_path, "unused")
    assert told.startswith("error in the script: without a gradient: ")
    used = f"used at {at('the heads')}"
    named = {f"{head}.weight, {head}.bias ({used}) on rank {rank}" for rank, head in enumerate(("cls", "reg", "reg"))}
    assert set(told.removeprefix("error in the script: without a gradient: ").split("; ")) <= named
    assert len(told.split("; ")) > 1


def test_hang_names_the_calls(tmp_path: Path) -> None:
    """Two ranks wait in the group of all, and one in another."""
    told = words(tmp_path, "hang", "--hang-timeout", "2")
    assert "hang: no step and no output" in told
    assert re.search(rf"rank 0 is in barrier no\. 1 in group 1 at {at('a group')}", told)
    assert f"ranks 1 and 2 are in {LAST}" in told


def test_ranks_that_agree(tmp_path: Path) -> None:
    """Calls of one number are equal on all ranks: of sharded, split and replicated models, with a pass of one alone."""
    script = Path(__file__).parent / "agreeing.py"
    done = warm.run(["-m", "echelon", "run", "-n", "4", "--scale", "off", str(script)], cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    pages = {rank: json.loads((tmp_path / f"page-{rank}.json").read_text()) for rank in range(4)}
    ranks = last_calls.read(pages, {}, {})
    assert last_calls.compare(ranks) == ""
    assert {max(rank.numbered("")) for rank in ranks} == {4}
    kinds = {call.kind for rank in ranks for call in rank.calls}
    assert kinds >= {"backward", "all_reduce", "all_gather_object"}
