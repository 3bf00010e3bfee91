"""States in the memory of nodes: a lost node's share is on the next one, and all nodes find the same newest state."""

from pathlib import Path

import pytest
from tests.checkpoint.in_memory import keeping
from tests.train.strategies import ranks

from echelon.checkpoint.in_memory.memory_saver import MOST_STEPS, NodeMarks, SavePace


@pytest.mark.parametrize("node_of_ranks", ["a", "ab", "aabb", "aaabbc", "abab", "abbbcc"])
def test_every_share_has_a_keeper_on_another_node(node_of_ranks: str) -> None:
    """Each rank has one keeper, on another node if there is one; keepers know whom they keep."""
    nodes = NodeMarks(list(node_of_ranks))
    for rank, node in enumerate(node_of_ranks):
        keeper = nodes.keeper_of(rank)
        assert rank in nodes.kept_by(keeper)
        assert (node_of_ranks[keeper] != node) == nodes.are_many
        assert nodes.leader_of(rank) == node_of_ranks.index(node)
    assert sorted(one for rank in range(len(node_of_ranks)) for one in nodes.kept_by(rank)) == list(
        range(len(node_of_ranks))
    )


def test_pace_follows_the_cost(monkeypatch: pytest.MonkeyPatch) -> None:
    """Saves take a 50th of the time: dear ones are rare, cheap ones come with each step; waiting for others is free."""
    now = [0.0]
    monkeypatch.setattr("echelon.checkpoint.in_memory.memory_saver.time.monotonic", lambda: now[0])

    def steps_between(step_seconds: float, cost: float, waited: float = 0.0, written: float = 0.0) -> int:
        pace, step, num_steps = SavePace(), 0, 1
        for _ in range(12):
            now[0] += num_steps * step_seconds
            step += num_steps
            num_steps = pace.begin(step, written)
            now[0] += cost + waited
            pace.end(step, cost + waited, waited)
        return num_steps

    assert steps_between(1.0, 0.01) == 1
    assert steps_between(0.1, 0.02) == 10
    assert steps_between(0.1, 0.001, written=1.0) == 50
    assert steps_between(1e-3, 1.0) == MOST_STEPS
    pace = SavePace()
    now[0] += 1.0
    pace.begin(1)
    pace.end(1, 0.01, 0.0)
    now[0] += 1.0
    pace.begin(2)
    pace.end(2, 0.51, 0.5)  # half a second of waiting for a slower rank
    now[0] += 1.0
    assert pace.begin(3) == 1


@pytest.mark.parametrize("kind", ["plain", "fsdp"])
def test_lost_node(tmp_path: Path, kind: str) -> None:
    """Each share is on two nodes; after the loss of one, the others and a new one get the whole newest state."""
    root = str(tmp_path)
    kept = ranks.run(4, keeping.keep, root, "aabc", kind, 3)
    assert all(one["said"] == [] for one in kept)
    files = [{name for name in one["files"] if name.endswith(".safetensors")} for one in kept]
    numbers = [{int(name[5:-12]) for name in one} for one in files]
    assert numbers == [{0, 1, 3}, {0, 1, 3}, {0, 1, 2}, {2, 3}]
    assert all(one["folder"] == ["step-000000002", "step-000000003"] for one in kept)
    keeping.lose(root, "a")
    for nodes in ("ddbc", "ddbc", "bbcc"):  # again on the same nodes, and on fewer
        found = ranks.run(4, keeping.find, root, nodes, kind, 2)
        assert [one["step"] for one in found] == [3] * 4
        assert all(one["is_same"] and one["is_whole"] and one["num"] > 5 for one in found), found
        assert all(one["journal"] == "step 3" and one["left"] == ["step-000000003"] for one in found)


def test_one_node(tmp_path: Path) -> None:
    """On one node, the shares of all ranks stay in its memory when the ranks are killed."""
    root = str(tmp_path)
    ranks.run(2, keeping.keep, root, "aa", "plain", 2)
    found = ranks.run(2, keeping.find, root, "aa", "plain", -1)
    assert [(one["step"], one["is_same"]) for one in found] == [(2, True)] * 2


@pytest.mark.parametrize("case", ["older", "two lost", "nothing"])
def test_disk_is_used_instead(tmp_path: Path, case: str) -> None:
    """A state that is older than that on the disk, or lacks a share, is not used, and leaves the memory."""
    root = str(tmp_path)
    if case != "nothing":
        ranks.run(4, keeping.keep, root, "abcd", "plain", 2)
    if case == "two lost":
        keeping.lose(root, "a", "b")  # neighbours
    found = ranks.run(4, keeping.find, root, "abcd", "plain", 2 if case == "older" else -1)
    assert [(one["step"], one["left"], one["said"]) for one in found] == [(-1, [], [])] * 4


def test_newest_state_that_is_whole(tmp_path: Path) -> None:
    """A state whose save was cut off on one node is not used; the one before is."""
    root = str(tmp_path)
    ranks.run(2, keeping.keep, root, "ab", "plain", 3)
    keeping.lose(root, "a/step-000000003", "b")
    found = ranks.run(2, keeping.find, root, "ac", "plain", -1)
    assert [(one["step"], one["is_same"], one["journal"]) for one in found] == [(2, True, "step 2")] * 2


def test_damaged_state(tmp_path: Path) -> None:
    """A state with a truncated file is not used."""
    root = str(tmp_path)
    ranks.run(2, keeping.keep, root, "aa", "plain", 3)
    (tmp_path / "a" / "step-000000003" / "rank-1.safetensors").write_bytes(b"")
    found = ranks.run(2, keeping.find, root, "aa", "plain", -1)
    assert [(one["step"], one["is_same"]) for one in found] == [(2, True)] * 2


def test_state_of_an_abandoned_way(tmp_path: Path) -> None:
    """A node that was away has a later step of an earlier attempt; the run went another way since, and stays on it."""
    root = str(tmp_path)
    ranks.run(2, keeping.keep, root, "aa", "plain", 3)
    (tmp_path / "a").rename(tmp_path / "away")
    ranks.run(2, keeping.keep, root, "bb", "plain", 1)
    first = ranks.run(2, keeping.find, root, "bb", "plain", -1, 1)  # attempt 1 goes on after step 1
    second = ranks.run(2, keeping.find, root, ["b", "away"], "plain", -1, 2)
    assert [one["step"] for one in (*first, *second)] == [1] * 4
    assert second[1]["left"] == ["step-000000001"]


def test_state_of_another_number_of_ranks(tmp_path: Path) -> None:
    """Where only the same number of ranks can go on in the middle of an epoch, another state is not used."""
    root = str(tmp_path)
    ranks.run(2, keeping.keep, root, "ab", "plain", 2)
    assert [one["step"] for one in ranks.run(3, keeping.find, root, "abc", "plain", -1, 1, 3)] == [-1] * 3


def test_node_that_cannot_take_the_state(tmp_path: Path) -> None:
    """A node whose memory refuses lets nobody wait; all use the disk, and nothing stays in memory."""
    root = str(tmp_path)
    ranks.run(3, keeping.keep, root, "abc", "plain", 2)
    keeping.lose(root, "a")
    (tmp_path / "d").write_text("a file in place of the folder")
    found = ranks.run(3, keeping.find, root, "dbc", "plain", -1)
    assert [(one["step"], one["left"]) for one in found] == [(-1, [])] * 3
    assert "cannot be used: " in found[0]["said"][0]


@pytest.mark.parametrize(
    ("what", "text"),
    [
        ("memory", "keeps no states in the memory of nodes from step 1 on: "),
        ("folder", "keeps no states in the memory of nodes from step 3 on: rank 1: cannot write "),
    ],
)
def test_what_cannot_be_kept_is_one_line(tmp_path: Path, what: str, text: str) -> None:
    """Rank 0 says once why nothing is kept any more, and the training goes on."""
    told = ranks.run(2, keeping.refuse, str(tmp_path), "ab", what)
    assert [len(one["said"]) for one in told] == [1, 0]
    assert told[0]["said"][0].startswith(text)
    assert not any(one["is_on"] for one in told)
