"""The slow rank is found among many, with its cause; and no rank where only chance makes a difference."""

import json
import os
import random
import subprocess
from pathlib import Path

import pytest
from tests import warm
from tests.runs import ECHELON

from echelon.monitor import account, recorded, stragglers
from echelon.monitor.lines import RankLines, ScriptLine
from echelon.monitor.stragglers import COMPUTES, Measures
from echelon.node import frames

OTHERS = ScriptLine(part="", file="", number=0)
NUM_RANKS, NUM_SEEDS, NOISE, FACTOR = 64, 100, 0.05, 1.10
CAUSES = {"data_seconds": "waits for its DataLoader", "save_seconds": "saves", "": COMPUTES}


def ranks_after(steps: int, source: random.Random, slow: int, part: str) -> list[Measures]:
    """Simulate ranks that wait for the slowest in each step; the own time of each has up to 5 % of noise."""
    ranks = [dict.fromkeys(("step_seconds", "communication_seconds", "data_seconds"), 0.0) for _ in range(NUM_RANKS)]
    for _ in range(steps):
        own = [0.1 * (1 + source.uniform(0, NOISE)) for _ in ranks]
        extra = 0.1 * (FACTOR - 1)
        if slow >= 0:
            own[slow] += extra
        longest = max(own) + 0.005
        for rank, measures in enumerate(ranks):
            measures["step_seconds"] += longest
            measures["communication_seconds"] += longest - own[rank]
            measures["data_seconds"] += 0.01
            if rank == slow and part:
                measures[part] = measures.get(part, 0.0) + extra
    return ranks


def test_precision_and_recall() -> None:
    """Within 20 steps, over 100 seeds: half of the runs have a slow rank."""
    hits, false, causes = 0, 0, 0
    for seed in range(NUM_SEEDS):
        source = random.Random(seed)
        slow, part = (source.randrange(NUM_RANKS), source.choice(list(CAUSES))) if seed % 2 else (-1, "")
        told = stragglers.find([{}] * NUM_RANKS, ranks_after(20, source, slow, part), 20)
        hits += slow in [each.rank for each in told]
        false += sum(each.rank != slow for each in told)
        causes += any(each.rank == slow and each.cause == CAUSES[part] for each in told)
    assert hits / (NUM_SEEDS / 2) >= 0.95
    assert hits / (hits + false) >= 0.95
    assert causes / hits >= 0.9


@pytest.mark.parametrize(
    ("more", "cause"),
    [
        ({"throttled_seconds": 5.0}, "is not let run, as its cgroup has used up its share of cores"),
        ({"core_wait_seconds": 5.0}, "waits for a core, on which another rank or program runs"),
        ({"core_wait_seconds": 5.0, "beside_seconds": 6.0}, "waits for a core, on which its own threads run"),
        ({"core_wait_seconds": 5.0, "core_seconds": 3.0}, COMPUTES),  # it waits because it computes more
        ({"disk_wait_seconds": 5.0}, "waits for a disk"),
        ({"tokens": 300.0}, "gets 4.0 times the tokens of the others"),
        ({"tokens": 20.0}, COMPUTES),  # too little to explain it
        ({"beside_seconds": 6.0, "threads": 1.0}, "runs threads of its own meanwhile"),
        ({"beside_seconds": 6.0, "threads": 2.0}, COMPUTES),  # they may compute the same
        ({"major_faults": 1000.0}, "reads 10 pages of its memory from a disk in each step"),
        ({"backward_seconds": 6.0}, "takes longer backward"),
        ({"data_seconds": 6.0}, "waits for its DataLoader"),
        (
            {"data_seconds": 6.0, "loader_workers": 2.0},
            "waits for its DataLoader; workers of the other ranks load while those wait, and may be no faster",
        ),
    ],
)
def test_what_holds_a_rank_up(more: Measures, cause: str) -> None:
    """A rank that takes twice the time has the cause that explains half of it, and no other."""
    usual = {"step_seconds": 20.0, "communication_seconds": 10.0, "core_seconds": 8.0, "tokens": 100.0}
    slow = {**usual, "communication_seconds": 0.0}
    slow.update((name, usual.get(name, 0.0) + value) for name, value in more.items())
    told = stragglers.find([{}] * 3, [usual, slow, usual], 100)
    assert [(each.rank, each.cause) for each in told] == [(1, cause)]


@pytest.mark.parametrize(
    ("part", "cause"),
    [
        (frames.IN_BACKWARD, "takes longer backward in train.py:7"),
        ("", "takes longer backward, spends longer in train.py:7"),
    ],
)
def test_line_of_another_part_is_told_by_itself(part: str, cause: str) -> None:
    """A line of the forward pass is not where a rank goes backward."""
    line = ScriptLine(part=part, file="train.py", number=7)
    usual = RankLines(now=None, core_wait=0.0, steps={line: (1.0, 1.0), OTHERS: (19.0, 9.0)})
    slow = RankLines(now=None, core_wait=0.0, steps={line: (8.0, 3.0), OTHERS: (12.0, 9.0)})
    ranks = [
        {"step_seconds": 20.0, "communication_seconds": waited, "backward_seconds": backward}
        for waited, backward in ((10.0, 1.0), (0.0, 7.0))
    ]
    (told,) = stragglers.find([{}] * 2, ranks, 100, {0: usual, 1: slow})
    assert (told.rank, told.cause) == (1, cause)


def test_two_lines_that_explain_together_what_each_does_not() -> None:
    """A look that waits for Python's lock sees the line after a loop; a line alone explains half, or the two do."""
    loop, after = (ScriptLine(part="", file="train.py", number=number) for number in (7, 8))
    usual = RankLines(now=None, core_wait=0.0, steps={OTHERS: (20.0, 9.0)})
    slow = RankLines(now=None, core_wait=0.0, steps={loop: (4.0, 4.0), after: (3.0, 3.0), OTHERS: (13.0, 9.0)})
    ranks = [{"step_seconds": 20.0, "communication_seconds": waited} for waited in (10.0, 0.0)]
    (told,) = stragglers.find([{}] * 2, ranks, 100, {0: usual, 1: slow})
    assert told.cause == "spends longer in train.py:7, running, and in train.py:8, running"


def test_comparison_in_which_rank_0_computes_for_all_makes_it_no_straggler() -> None:
    ranks = [{"step_seconds": 20.0, "communication_seconds": 1.0, "check_seconds": 9.0}]
    ranks.append({"step_seconds": 20.0, "communication_seconds": 9.0, "check_seconds": 1.0})
    assert stragglers.find([{}] * 2, ranks, 100) == []


@pytest.mark.parametrize(
    ("threads", "beside", "told"),
    [(1, [1.0, 6.0, 2.0], (1, 0.4)), (4, [1.0, 6.0, 2.0], (-1, 0.0)), (1, [6.0, 6.0, 6.0], (0, 0.0))],
)
def test_threads_beside_are_those_that_others_do_not_have(
    threads: int, beside: list[float], told: tuple[int, float]
) -> None:
    """Threads of collectives are on all ranks, and several of PyTorch's own compute the same."""
    ranks = [{"step_seconds": 10.0, "threads": float(threads), "beside_seconds": seconds} for seconds in beside]
    assert stragglers.threads_beside(ranks) == told


@pytest.mark.parametrize(("slow", "told"), [([0, 1] * 4, {0: 4, 1: 4}), ([1] * 8, {}), ([-1] * 8, {}), ([0, 1], {})])
def test_ranks_that_take_turns(slow: list[int], told: dict[int, int]) -> None:
    """Windows of 25 steps, each with its slow rank; one rank alone, none, and few windows are no turns."""
    sums = [dict.fromkeys(("step_seconds", "communication_seconds"), 0.0) for _ in range(2)]
    samples = [(1, [dict(each) for each in sums])]
    for number, rank in enumerate(slow, 1):
        for other, measures in enumerate(sums):
            measures["step_seconds"] += 25 * 0.2
            measures["communication_seconds"] += 25 * (0.02 if rank in (other, -1) else 0.12)
        samples.append((1 + 25 * number, [dict(each) for each in sums]))
    assert stragglers.alternating(samples) == told


def test_nothing_is_told_of_few_steps_or_unknown_waits() -> None:
    slow = ranks_after(19, random.Random(1), 3, "")
    assert stragglers.find([{}] * NUM_RANKS, slow, 19) == []
    del slow[0]["communication_seconds"]
    assert stragglers.find([{}] * NUM_RANKS, slow, 40) == []
    assert stragglers.find([{}], [{"step_seconds": 1.0, "communication_seconds": 0.1}], 40) == []


def test_difference_within_what_one_step_varies_by() -> None:
    """Two healthy ranks whose steps vary by 30 % differ by 9 % of chance; a rank that is twice as slow is told."""
    source = random.Random(0)
    for factor, told in ((1.09, []), (2.0, [1])):
        ranks = []
        for slow in (1.0, factor):
            steps = [0.1 * slow * source.uniform(0.5, 1.5) for _ in range(200)]
            whole = 0.1 * slow * 200
            squares = sum(step * step for step in steps) * (whole / sum(steps)) ** 2
            ranks.append({"step_seconds": 50.0, "communication_seconds": 50.0 - whole, "own_squares": squares})
        assert [each.rank for each in stragglers.find([{}] * 2, ranks, 200)] == told


@pytest.mark.parametrize(("num_long", "told"), [(1, []), (10, [1])])
def test_a_long_step_makes_no_slow_rank(num_long: int, told: list[int]) -> None:
    """A step that the machine has held up is no cause, however long it was; if it comes again and again, it is."""
    steps = [[0.01] * 100, [0.51] * num_long + [0.01] * (100 - num_long)]
    ranks = [
        {"step_seconds": 9.0, "communication_seconds": 9.0 - sum(own), "own_squares": sum(each * each for each in own)}
        for own in steps
    ]
    assert [each.rank for each in stragglers.find([{}] * 2, ranks, 100)] == told


OF_ITSELF = """
import random, time, torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
chance = random.Random(dist.get_rank())
model = DistributedDataParallel(torch.nn.Linear(6, 3))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(30):
    loss = model(torch.randn(4, 6)).pow(2).mean()
    time.sleep(0.3 * (1 + chance.uniform(0, 0.05)) * (1.10 if dist.get_rank() == 5 else 1))
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
"""


def test_slow_rank_of_eight_real_ones(tmp_path: Path) -> None:
    """Eight ranks share two cores, and their steps vary by a third; it is slower than that."""
    (tmp_path / "train.py").write_text(OF_ITSELF.replace("1.10 if", "1.6 if"))
    environ = {**os.environ, "OMP_NUM_THREADS": "1"}
    line = ["-m", "echelon", "run", "--run-dir", "run", "-n", "8", "train.py"]
    assert not warm.run(line, cwd=tmp_path, environ=environ).returncode
    told = account.of_run(recorded.read(str(tmp_path / "run"))).stragglers
    assert [(each.rank, each.cause) for each in told] == [(5, "spends longer in train.py:12, `time.sleep`, sleeping")]


LATE = OF_ITSELF.replace("range(30)", "range(120)").replace("0.3 *", "0.2 *").replace("1.10 if", "1.4 if")


@pytest.mark.tier("all")
def test_run_says_it_aloud(tmp_path: Path) -> None:
    """Once, while it goes on, and for programs in events.jsonl."""
    (tmp_path / "train.py").write_text(LATE)
    environ = {**os.environ, "OMP_NUM_THREADS": "1"}
    line = [*ECHELON, "run", "--run-dir", "run", "-n", "4", "train.py"]
    script = LATE.replace("== 5", "== 2")
    (tmp_path / "train.py").write_text(script)
    done = subprocess.run(line, cwd=tmp_path, env=environ, check=True, capture_output=True, text=True)
    assert done.stderr.count("note: rank 2 makes the others wait") == 1
    events = [json.loads(line) for line in (tmp_path / "run" / "events.jsonl").read_text().splitlines()]
    (fact,) = (event for event in events if event["event"] == "fact")
    assert (fact["fact"], fact["rank"]) == ("straggler", 2)
    assert fact["excess"] == pytest.approx(0.4, abs=0.2)
    assert "% computing" in done.stderr.splitlines()[-1]
