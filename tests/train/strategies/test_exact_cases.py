"""`echelon.start(exact=8)` in a few steps: every schedule and optimizer, a loop of one's own, and what is refused."""

import functools
from typing import Any

import pytest
from tests.tiers import in_all, some
from tests.train.strategies import exactly, ranks, test_equal
from tests.train.strategies.same_bits import alone, compare, data, pipeline, train

from echelon.train import optimizer_kinds
from echelon.train.exact import keys
from echelon.train.scaling_error import ScalingError
from echelon.train.strategies.strategy import Strategy

FEW = 6

OTHERS = [
    *[(2, pipeline(name, pipeline=2, accumulation=8)) for name in ("gpipe", "looped-bfs", "zbv", "dualpipev")],
    (1, data(checkpointing="full")),
    (2, pipeline("interleaved", pipeline=2, accumulation=8, checkpointing="full")),
    (2, data(shard=2, offload=True, checkpointing="selective")),
]


@functools.cache
def with_every_optimizer(names: tuple[str, ...]) -> dict[str, str]:
    found: dict[str, str] = ranks.run(1, exactly.by_optimizer, list(names), Strategy(precision="bf16"))[0]
    return found


@pytest.mark.parametrize(("num_ranks", "strategy"), some(OTHERS, 12, first=6), ids=test_equal.name_of)
def test_same_bits_in_a_few_steps(num_ranks: int, strategy: Strategy) -> None:
    """The rest of PyTorch's schedules, activations computed again, and weights in the host's memory."""
    compare(*train(num_ranks, strategy, FEW))
    assert alone(FEW)["digest"] != alone(FEW - 1)["digest"]


OF_OPTIMIZERS = [data(shard=2), data(shard=2, reshard="never"), pipeline("1f1b", pipeline=2, accumulation=8)]


@pytest.mark.tier("all")
@pytest.mark.parametrize("strategy", some(OF_OPTIMIZERS, 3), ids=str)
def test_same_bits_with_every_optimizer(strategy: Strategy) -> None:
    """PyTorch's own ways of stepping, on all weights at once and one by one, have not the same bits."""
    names = [kind.__name__ for kind in optimizer_kinds.ELEMENTWISE]
    expected = with_every_optimizer(tuple(names))
    assert len(set(expected.values())) == len(names)
    assert ranks.run(2, exactly.by_optimizer, names, strategy)[0] == expected


@pytest.mark.parametrize("num_ranks", [2, 4, in_all(8)])
def test_sums_over_ranks(num_ranks: int) -> None:
    """Small tensors that are exchanged whole have the bits of large ones that are exchanged in halves, on all ranks."""
    whole, halves = (ranks.run(num_ranks, exactly.sums, small_bytes) for small_bytes in (1 << 40, 0))
    assert whole == [whole[0]] * num_ranks
    assert halves == whole


def test_sum_beside_a_message_of_the_script() -> None:
    """What a script waits for is not taken from the sum, nor the sum's from it."""
    assert ranks.run(2, exactly.sum_beside_own_message) == [([1.0] * 3, [10.0] * 3), ([0.0] * 3, [10.0] * 3)]


def test_it_is_the_training_of_one_device() -> None:
    """Without dropout the losses are those of a training by hand, to rounding."""
    expected = ranks.run(1, exactly.by_hand)[0]
    for losses in ranks.run(2, exactly.without_dropout, Strategy(pipeline=2, accumulation=8)):
        assert losses == pytest.approx(expected, rel=2e-6)


def test_loop_of_ones_own() -> None:
    """run.loader() and run.model() go on as they are, with the same bits."""
    expected = ranks.run(1, exactly.own_loop)[0]
    for found in ranks.run(4, exactly.own_loop):
        assert found[:2] == expected[:2]
        assert found[2] == pytest.approx((0 + 2 + 4 + 6) / 4)  # the first shards of four ranks with as many rows each


FUSED = "SGD(fused=True) rounds the last elements of a shard differently"
REFUSED: list[tuple[int, Strategy, str, str, str]] = [
    (2, Strategy(tensor=2), "", "tensor=2 cuts the sums inside a layer", "shard=2"),
    (2, Strategy(context=2), "", "context=2 cuts the sums inside a layer", "echelon prove"),
    (2, Strategy(replicate=2, compile=True), "", "random numbers in another order", "compile=False"),
    (2, Strategy(replicate=2, accumulation=2), "", "accumulation 2 = 4", "accumulation=4"),
    (2, Strategy(pipeline=2, accumulation=4), "", "replicate 1 × shard 1 × accumulation 4 = 4", "accumulation=8"),
    (2, Strategy(replicate=2), "rows", "the batch has 4 rows, but exact is 8", "drop_last"),
    (2, Strategy(replicate=2), "loop", "the script called the model with the whole batch", "trained.step("),
    (2, Strategy(shard=2), "optimizer", "Mine may mix the elements of a weight", "replicate="),
    (2, Strategy(shard=2), "fused", FUSED, "fused=False; or replicate="),
    (2, Strategy(shard=2), "fused group", FUSED, "fused=False; or replicate="),
    (4, Strategy(pipeline=2, shard=2, accumulation=4), "fused group", FUSED, "fused=False; or replicate="),
    (2, Strategy(shard=2), "fused state", FUSED.replace("SGD", "AdamW"), 'group["fused"] = False; or replicate='),
    (2, Strategy(shard=2), "loader", "may get other augmentation and padding", "trained.step("),
    (2, Strategy(replicate=2), "buffer", "changes its buffer head.0.calls", "GroupNorm"),
]


@pytest.mark.parametrize("case", some(REFUSED, 2), ids=lambda case: f"{test_equal.name_of(case[1])}-{case[2]}")
def test_what_cannot_be_exact(case: Any) -> None:
    """Refused on every rank, with the reason and a way out."""
    num_ranks, strategy, what, message, hint = case
    for said, way_out in ranks.run(num_ranks, exactly.refused, strategy, what):
        assert message in said
        assert hint in way_out


@pytest.mark.parametrize(
    ("num_shards", "num_ranks", "message", "way_out"),
    [
        (6, 1, "exact is 6", "exact=4), or exact=8"),
        (1, 1, "exact is 1", "exact=2), or exact=4"),
        (True, 1, "exact is True", "exact=8"),
        ("8", 1, "exact is '8'", "exact=8"),
        (8, 3, "exact=8 needs 1, 2, 4 or 8 ranks, but the run has 3", "echelon run -n 2 …"),
        (4, 16, "exact=4 needs 1, 2 or 4 ranks, but the run has 16", "echelon run -n 4 …"),
    ],
)
def test_wrong_number(num_shards: Any, num_ranks: int, message: str, way_out: str) -> None:
    """Both numbers are shown, and what would be right."""
    with pytest.raises(ScalingError) as caught:
        keys.check(num_shards, num_ranks)
    assert message in str(caught.value)
    assert way_out in str(caught.value)
