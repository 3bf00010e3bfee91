"""What exact trainings have in common: one device alone, which is the oracle, and how others are compared with it."""

import functools
from collections.abc import Sequence
from typing import Any

from tests.train.strategies import exactly, ranks

from echelon.train.strategies.strategy import Strategy

DEPTHS = (exactly.FEWEST_BLOCKS, 4, exactly.MOST_BLOCKS)


def data(**axes: Any) -> Strategy:
    return Strategy(precision="bf16", **axes)


def pipeline(schedule: str, **axes: Any) -> Strategy:
    return data(schedule=schedule, **axes)


def alone(num_steps: int, depth: int = exactly.MOST_BLOCKS) -> Any:
    """Return what one device says after so many steps with so many blocks."""
    return _alone(num_steps)[depth]


@functools.cache
def _alone(num_steps: int) -> dict[int, Any]:
    worlds = [(1, exactly.train, (Strategy(precision="bf16"), 0, num_steps, "", "", depth)) for depth in DEPTHS]
    found = ranks.run_beside(*worlds)
    return {depth: one for depth, (one,) in zip(DEPTHS, found, strict=True)}


def train(num_ranks: int, strategy: Strategy, num_steps: int) -> tuple[list[Any], Any]:
    """Return what ranks say, and one device, of a model with no more blocks than there are stages to have them."""
    return train_beside([(num_ranks, strategy)], num_steps)[0]


def train_beside(worlds: Sequence[tuple[int, Strategy]], num_steps: int) -> list[tuple[list[Any], Any]]:
    """Do so in several worlds at a time: where a few ranks wait for one another the cores have time for others."""
    depths = [max(strategy.num_stages, exactly.FEWEST_BLOCKS) for _, strategy in worlds]
    found = ranks.run_beside(
        *(
            (num_ranks, exactly.train, (strategy, 0, num_steps, "", "", depth))
            for (num_ranks, strategy), depth in zip(worlds, depths, strict=True)
        )
    )
    return [(one, alone(num_steps, depth)) for one, depth in zip(found, depths, strict=True)]


def compare(found: list[Any], expected: Any) -> None:
    """Compare losses and norms on all ranks, and the digest."""
    assert found[0]["digest"] == expected["digest"]
    assert len(expected["digest"]) == 64
    for one in found:
        assert one["said"] == expected["said"][-len(one["said"]) :]
        assert one["evaluated"] == expected["evaluated"]
