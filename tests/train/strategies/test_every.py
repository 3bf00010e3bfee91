"""Every strategy and all that compose, on 2, 4 and 8 ranks, with both optimizers, and activations computed again.

In the tier "all" all of them are run, in a quarter of an hour; else one on two ranks.
"""

import itertools
from collections.abc import Iterator
from typing import Any

import pytest
from tests.tiers import pick
from tests.train.strategies import proving, test_equal
from tests.train.strategies.models import NUM_ROWS

from echelon.train.strategies.strategy import AXES, RESHARD, Strategy, StrategyError

MOST = {"tensor": 4, "pipeline": 4}  # of these models' heads and blocks
WAYS: tuple[tuple[str, float, str], ...] = (("adamw", 0.5, "none"), ("sgd", 0.0, "full"))


def every() -> Iterator[tuple[str, int, Strategy, str, float]]:
    """Yield each model, number of ranks, strategy, optimizer and limit of the norm."""
    for num_ranks in (2, 4, 8):
        for sizes in itertools.product((1, 2, 4, 8), repeat=len(AXES)):
            axes = dict(zip(AXES, sizes, strict=True))
            if not all(axes[name] <= most for name, most in MOST.items()):
                continue
            for reshard, (optimizer, clip, checkpointing) in itertools.product(RESHARD, WAYS):
                strategy = made(**axes, reshard=reshard, checkpointing=checkpointing, accumulation=axes["pipeline"])
                if strategy is not None and strategy.num_ranks == num_ranks:
                    yield from ((kind, num_ranks, strategy, optimizer, clip) for kind in kinds(strategy))


def made(**settings: Any) -> Strategy | None:
    """Return a strategy; None where parts do not compose, or say nothing here."""
    if settings["shard"] == 1 and settings["reshard"] != RESHARD[0]:
        return None
    try:
        strategy = Strategy(**settings)
    except StrategyError:
        return None
    return strategy if strategy.num_data * strategy.accumulation <= NUM_ROWS else None


def kinds(strategy: Strategy) -> tuple[str, ...]:
    """Return the models that it applies to."""
    return ("gpt", "cnn") if strategy.num_data == strategy.num_ranks else ("gpt",)


ALL = list(every())
CHOSEN = pick([next(case for case in ALL if case[1] == 2 and case[2].shard == 2)], all=ALL)


@pytest.mark.parametrize(("kind", "num_ranks", "strategy", "optimizer", "clip"), CHOSEN, ids=test_equal.name_of)
def test_is_the_training_of_one_device(
    kind: str, num_ranks: int, strategy: Strategy, optimizer: str, clip: float
) -> None:
    """A training by hand has the same numbers, and a proof finds it equal; it is saved and loaded half way."""
    found = proving.train(num_ranks, kind, strategy, optimizer, clip)
    test_equal.compare(found, test_equal.alone(kind, optimizer, clip))
