"""`echelon.start(exact=8)`: one digest of weights, optimizer and random state on any number of ranks in every way.

20 steps, 200 in the tier "all", with dropout, clipping and 16 bits. What else is exact, and what is refused:
test_exact_cases.
"""

from pathlib import Path

import pytest
from tests.tiers import pick, some
from tests.train.strategies import exactly, ranks, test_equal
from tests.train.strategies.same_bits import alone, compare, data, pipeline, train, train_beside

from echelon.train.strategies.strategy import Strategy

NUM_STEPS = pick(10, all=200)

BESIDE = {
    "replicas": [(1, data(accumulation=8)), (2, data(replicate=2)), (2, data(shard=2))],
    "spread": [(2, data(shard=2, reshard="never", accumulation=4)), (2, pipeline("1f1b", pipeline=2, accumulation=8))],
    "stages": [(2, pipeline(schedule, pipeline=2, accumulation=8)) for schedule in ("interleaved", "zero-bubble")],
}

STRATEGIES = [
    (4, data(replicate=4)),
    (4, data(shard=4, reshard="after-backward")),
    (4, data(replicate=2, shard=2, accumulation=2)),
    (4, pipeline("1f1b", pipeline=2, shard=2, accumulation=4)),
    (4, pipeline("interleaved", pipeline=4, accumulation=8)),
    (4, pipeline("zero-bubble", pipeline=2, replicate=2, accumulation=4)),
    (8, data(replicate=8)),
    (8, data(shard=8)),
    (8, data(replicate=2, shard=4)),
    (8, pipeline("1f1b", pipeline=8, accumulation=8)),
    (8, pipeline("interleaved", pipeline=4, replicate=2, accumulation=4, stages_per_rank=1)),
    (8, pipeline("zero-bubble", pipeline=4, shard=2, reshard="after-backward", accumulation=4, stages_per_rank=1)),
]  # fmt: skip


@pytest.mark.parametrize("worlds", some([pytest.param(worlds, id=name) for name, worlds in BESIDE.items()], 3, first=2))
def test_same_bits_on_few_ranks(worlds: list[tuple[int, Strategy]]) -> None:
    """The same on one rank and two, in several worlds at a time."""
    for found, expected in train_beside(worlds, NUM_STEPS):
        compare(found, expected)


@pytest.mark.tier("all")
@pytest.mark.parametrize(("num_ranks", "strategy"), some(STRATEGIES, 60, first=4), ids=test_equal.name_of)
def test_same_bits(num_ranks: int, strategy: Strategy) -> None:
    """Replicas, spread weights, micro-batches, and stages."""
    compare(*train(num_ranks, strategy, NUM_STEPS))


@pytest.mark.tier("all")
def test_ranks_and_strategy_change_on_the_way(tmp_path: Path) -> None:
    """From what was saved another number of ranks goes on under another strategy, with the same bits: 2, then 4, 1."""
    third = NUM_STEPS // 3
    moves = [
        (2, data(shard=2), 0, third),
        (4, pipeline("interleaved", pipeline=4, accumulation=8), third, 2 * third),
        (1, data(), 2 * third, NUM_STEPS),
    ]
    path, found = "", []
    for num_ranks, strategy, first, last in moves:
        save = str(tmp_path / f"{last}.pt")
        found = ranks.run(num_ranks, exactly.train, strategy, first, last, path, save)
        path = save
    compare(found, alone(NUM_STEPS))
