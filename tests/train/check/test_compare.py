"""The bounds within which a gradient of several ranks is that of one device."""

import pytest
import torch
from torch import nn

from echelon.train.check import compare
from echelon.train.check.closeness import difference_of_gradients
from echelon.train.scaling_error import ScalingError


def test_imaginary_part_of_a_gradient_counts() -> None:
    """A complex gradient with the right real part and another imaginary part is refused, not called equal."""
    wanted = torch.tensor([1 + 1j, 2 - 1j])
    bound = compare.bound_of(wanted.dtype, 4, compare.norm_of([wanted]), is_half=False)
    assert bound.norm == pytest.approx(7**0.5)
    weight = nn.Parameter(torch.zeros(2, dtype=wanted.dtype))
    assert compare.difference(weight, wanted.clone(), wanted, bound) == 0.0
    with pytest.raises(ScalingError, match="differs by"):
        compare.difference(weight, wanted.conj().resolve_conj(), wanted, bound)
    assert difference_of_gradients([wanted.conj()], [wanted], ["weight"]) is not None


def test_multiple_of_a_gradient_is_named() -> None:
    """A gradient that is twice as large is refused with its factor."""
    wanted = torch.arange(1.0, 5.0)
    bound = compare.bound_of(wanted.dtype, 4, compare.norm_of([wanted]), is_half=False)
    with pytest.raises(ScalingError, match="it is 2 times as large") as refusal:
        compare.difference(nn.Parameter(torch.zeros(4)), 2 * wanted, wanted, bound)
    assert refusal.value.factor == pytest.approx(2.0)


def test_gradient_that_is_not_finite() -> None:
    """What is no number on one device either is left out, and named; in other places it is a difference."""
    wanted = torch.tensor([1.0, float("nan"), float("inf"), 4.0])
    bound = compare.bound_of(wanted.dtype, 4, compare.norm_of([wanted]), is_half=False)
    assert bound.norm == pytest.approx(17**0.5)
    layer = nn.Linear(4, 1, bias=False)
    weight = layer.weight
    assert compare.difference(weight, wanted.clone(), wanted, bound) == 0.0
    assert compare.name_of_infinite(weight, wanted) == "Linear.weight"
    assert not compare.name_of_infinite(weight, torch.ones(1, 4))
    for place, value in ((0, 2.0), (0, float("nan")), (1, 0.0)):
        other = wanted.clone()
        other[place] = value
        with pytest.raises(ScalingError, match=r"differs by|not finite in other places"):
            compare.difference(weight, other, wanted, bound)
    sparse = torch.eye(3).to_sparse()
    assert compare.difference(weight, sparse, sparse, bound) == 0.0


@pytest.mark.parametrize(
    ("ours", "theirs", "is_half", "is_same"),
    [
        (torch.tensor(1_000_016), torch.tensor(1_000_032), False, False),  # a count of samples: nothing is rounded
        (torch.tensor([3, 5]), torch.tensor([3, 5]), False, True),
        (torch.ones(4), torch.ones(4) * (1 + 5e-4), False, True),
        (torch.ones(4), torch.ones(4) * (1 + 5e-3), False, False),
        (torch.ones(4), torch.ones(4) * (1 + 5e-3), True, True),
        (torch.ones(4).double(), torch.ones(4).double() * (1 + 5e-5), False, False),
        (torch.ones(4), torch.ones(5), False, False),
        (torch.full((4,), float("nan")), torch.full((4,), float("nan")), False, True),
    ],
)
def test_buffers_are_compared_by_what_rounding_may_do(
    ours: torch.Tensor, theirs: torch.Tensor, is_half: bool, is_same: bool
) -> None:
    """A buffer differs from that of one device if the difference is more than the rounding of its dtype."""
    buffers = {"key": ("Net.count", ours)}
    if is_same:
        compare.compare_buffers(buffers, {"key": theirs}, is_half=is_half)
        return
    with pytest.raises(ScalingError, match=r"the model changes its buffer Net\.count") as caught:
        compare.compare_buffers(buffers, {"key": theirs}, is_half=is_half)
    caught.value.withdraw()
