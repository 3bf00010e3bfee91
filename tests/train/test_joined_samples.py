"""Numbers of rows and samples that a collate function writes into a batch are those of the whole batch in the loop."""

from typing import Any

import pytest
import torch
from tests.tiers import some
from tests.train import joined_samples
from tests.train.strategies import ranks

from echelon.train.collating import numbering_of
from echelon.train.global_tensors.numbered import NOT_JOINED, OF_SAMPLES


@pytest.mark.parametrize("num_ranks", some([3, 2], 1))
def test_loop_that_sums_by_sample(num_ranks: int) -> None:
    """Without any check, losses and numbers are those of one device; each rank has numbered its own samples from 0."""
    alone = joined_samples.train()
    assert ranks.run(num_ranks, joined_samples.outcome) == [pytest.approx(alone, rel=1e-5)] * num_ranks


@pytest.mark.parametrize("what", ["edges", "ends"])
def test_what_cannot_be_put_together(what: str) -> None:
    """A loop that uses edges in dim 1, or one end more than samples, is refused on all ranks, with the reason."""
    told = ranks.run(2, joined_samples.refusal, what)
    assert all("the collate function joins samples, but not row by row" in refusal for refusal in told), told


ROWS = [torch.arange(float(2 + at)).view(-1, 1) for at in (1, 0, 3, 2, 2)]


def _counting(samples: Any) -> Any:
    return torch.cat([torch.full((len(x),), at) for at, x in enumerate(samples)])


@pytest.mark.parametrize(
    ("others", "expected"),
    [
        (lambda samples: [_counting(samples)], {1: OF_SAMPLES}),
        (lambda samples: [torch.tensor([0, *map(len, samples[:-1])]).cumsum(0)], {1: 0}),
        (lambda samples: [_counting(samples)[:, None].expand(-1, 2)], {1: OF_SAMPLES}),
        (lambda samples: [torch.tensor([len(x) for x in samples])], {}),  # the same in a part
        (lambda samples: [torch.tensor([len(x) for x in samples]).sort().values], {}),  # in another order
        (lambda samples: [torch.tensor([0, *map(len, samples)]).cumsum(0)], {1: NOT_JOINED}),  # one more entry
        (lambda samples: [torch.randint(0, 9, (sum(map(len, samples)),))], {}),
        (lambda samples: [_counting(samples).float()], {}),
        (lambda samples: [torch.cat(list(samples)).T], {1: NOT_JOINED}),  # joined in dim 1
    ],
)
def test_what_numbers_count(others: Any, expected: dict[int, int]) -> None:
    """Samples or rows, found by comparing a batch with those of its parts; what is drawn or sorted is left alone."""
    torch.manual_seed(1)
    assert numbering_of(lambda samples: [torch.cat(list(samples)), *others(samples)], ROWS) == expected
