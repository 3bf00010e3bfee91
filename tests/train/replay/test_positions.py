"""Every sample comes exactly once in an epoch, whenever a run is killed and on as many ranks as it goes on.

10,000 cases in the tier "soak"; else a part.
"""

import random

import pytest
from tests.tiers import pick, some

from echelon.train.scaling_error import ScalingError

from . import positions
from .positions import SAMPLERS, Case, NoisyCase

pytestmark = pytest.mark.usefixtures("with_rules")
NUM_CASES = pick(100, all=500, soak=10_000)
NUM_WITH_WORKERS = pick(2, all=6, soak=300)
GROUPS = 10


def case_of(chance: random.Random, workers: int) -> tuple[Case, int, int]:
    """Return a case, and the numbers of ranks before and after the moment."""
    size, batch = chance.randint(4, 40), chance.randint(2, 9)
    case = Case(chance.choice(SAMPLERS), size, min(batch, size), 0, workers=workers, seed=chance.randrange(1 << 20))
    epochs = case.epochs()
    most = min((len(each[0]) for each in epochs if each), default=1)
    case.taken = chance.randint(1, max(1, sum(len(each) for each in epochs) - 1))
    return case, chance.randint(1, min(4, most)), chance.randint(1, min(4, most))


def assert_dealt_once(case: Case, before: int, after: int) -> None:
    """Assert that the ranks together get the batches of one device, in its order, before and after the moment."""
    wanted = [(number, batch) for number, epoch in enumerate(case.epochs()) for batch in epoch]
    first, saved = positions.recorded(case, before)
    second = positions.continued(case, after, saved)
    together = [*joined(first), *joined(second)]
    assert together == wanted, (vars(case), before, after)


def joined(dealt: list[list[tuple[int, list[int]]]]) -> list[tuple[int, list[int]]]:
    """Return the batches of all ranks: the samples of each are those of its ranks, one after the other."""
    assert len({len(each) for each in dealt}) == 1
    return [(parts[0][0], [one for _, part in parts for one in part]) for parts in zip(*dealt, strict=True)]


@pytest.mark.parametrize("group", range(GROUPS))
def test_every_sample_once(group: int) -> None:
    """Samplers, batch sizes, numbers of ranks and moments at random."""
    for seed in range(group, NUM_CASES, GROUPS):
        assert_dealt_once(*case_of(random.Random(seed), 0))


@pytest.mark.parametrize("seed", range(NUM_WITH_WORKERS))
def test_every_sample_once_with_workers(seed: int) -> None:
    """The same with processes that load."""
    assert_dealt_once(*case_of(random.Random(1_000_000 + seed), 1 + seed % 3))


@pytest.mark.parametrize(("size", "batch", "text"), [(20, 5, "batches of 4 samples"), (21, 4, "20 samples")])
def test_other_batches_or_samples_have_no_such_place(size: int, batch: int, text: str) -> None:
    """A position among batches means nothing for a loader with other batches, or with another data set."""
    case = Case("shuffled", 20, 4, 2)
    _, saved = positions.recorded(case, 1)
    case.size, case.batch = size, batch
    with pytest.raises(ScalingError, match=text):
        positions.continued(case, 1, saved)


MOMENTS = [(5, 2, False), (9, 3, True), (6, 2, True), (6, 3, False), (3, 1, False), (13, 2, True)]
"""Batches taken of three epochs with six each, and the workers; the sixth is at the end of an epoch."""


@pytest.mark.parametrize(("taken", "workers", "is_persistent"), some(MOMENTS, 3))
def test_workers_draw_on(taken: int, workers: int, is_persistent: bool) -> None:
    """The noise of samples goes on where it was, from each generator, for each worker and rank."""
    case = NoisyCase(18, workers=workers, is_persistent=is_persistent)
    wanted, _ = positions.recorded(case, 2)
    case.taken = taken
    first, saved = positions.recorded(case, 2)
    second = positions.continued(case, 2, saved)
    assert [[*one, *other] for one, other in zip(first, second, strict=True)] == wanted
