"""Without any check, a model's losses are those of one device, or all ranks refuse it and name the operation."""

import pytest
from tests.tiers import some
from tests.train import row_cases
from tests.train.strategies import ranks


@pytest.mark.parametrize("num_ranks", some([2, 3], 1))
def test_every_case(num_ranks: int) -> None:
    """Draws, mixed samples, totals, inner steps, buffers, time-first layers, arrays and lists."""
    told = ranks.run(num_ranks, row_cases.outcomes)
    wrong = []
    for name, (_, _, refusal) in row_cases.CASES.items():
        of_ranks = [one[name] for one in told]
        if refusal:
            is_right = all(isinstance(one, str) and refusal in one for one in of_ranks) and len(set(of_ranks)) == 1
            expected: object = refusal
        else:
            expected = pytest.approx(row_cases.train(name), rel=1e-4)
            is_right = all(one == expected for one in of_ranks)
        if not is_right:
            wrong.append(f"{name}: {of_ranks}, expected {expected}")
    assert not wrong, "\n".join(wrong)
