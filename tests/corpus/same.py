"""How far the losses, weights and texts of a run are those of one device."""

import re
from pathlib import Path
from typing import Any

import pytest

RELATIVE = 1e-5  # of a loss in float32

OWN_RANDOM_NUMBERS = "each rank draws for its own samples, and so other numbers"
# What the mathematics does not allow to be equal: the reason, and the factor within which the final loss must stay.
CLOSE: dict[str, tuple[str, float]] = {
    "augmentation": (OWN_RANDOM_NUMBERS + ": noise that is added as samples are loaded", 1.5),
    "autocast_bf16": ("sums over a share of the batch are rounded to 8 bits, as sums over the batch are", 1.02),
    "cnn_batchnorm": ("BatchNorm takes the statistics of each rank's samples, without --sync-bn", 3.0),
}
# The bias of queries, keys and values: the gradient of the keys' third is rounding, and Adam makes steps of it.
ROUNDING = {"dropout_transformer": "self_attn.in_proj_bias"}


def losses(name: str, expected: list[float], found: list[float], *, is_one: bool) -> None:
    """Assert that every step's loss is that of one device; where that cannot be, that the training goes as well."""
    assert len(found) == len(expected)
    if name in CLOSE and not is_one:
        last, last_alone = sum(found[-5:]) / 5, sum(expected[-5:]) / 5
        assert last_alone / CLOSE[name][1] <= last <= last_alone * CLOSE[name][1]
        return
    for step, (loss, by_alone) in enumerate(zip(found, expected, strict=True)):
        margin = 2e-8 + 2e-9 * abs(expected[0])  # what is left of a loss that has nearly gone
        assert loss == pytest.approx(by_alone, rel=RELATIVE, abs=margin), f"step {step}"


def weights(name: str, expected: Path, found: Path, *, is_one: bool) -> None:
    """Assert that `model.pt` in both folders has the same names, and weights that agree."""
    import torch

    alone, scaled = (flat(torch.load(folder / "model.pt")) for folder in (expected, found))
    assert list(scaled) == list(alone)
    assert not [key for key in scaled if "module." in key]
    for key, value in scaled.items():
        if not isinstance(value, torch.Tensor):
            assert value == alone[key], key
            continue
        assert (value.shape, value.dtype, value.device) == (alone[key].shape, alone[key].dtype, alone[key].device), key
        by_alone = alone[key]
        if ROUNDING.get(name, "-") in key and not is_one:
            value, by_alone = (torch.cat(weight.chunk(3)[::2]) for weight in (value, by_alone))
        difference = (value.double() - by_alone.double()).norm()
        assert torch.isfinite(difference), key
        if name not in CLOSE or is_one:
            assert difference <= 1e-4 * by_alone.double().norm() + 1e-6, key


NUMBER = re.compile(r"-?\d+(?:\.\d+)?(?:e[-+]?\d+)?")


def text(alone: str, scaled: str, *, are_equal: bool) -> None:
    """Compare line by line: the words, and the numbers as far as their digits go."""
    lines, by_alone = scaled.splitlines(), alone.splitlines()
    assert len(lines) == len(by_alone)
    for line, expected in zip(lines, by_alone, strict=True):
        assert NUMBER.sub("#", line) == NUMBER.sub("#", expected)
        if are_equal:
            for one, other in zip(NUMBER.findall(line), NUMBER.findall(expected), strict=True):
                digits = len(other.partition(".")[2])
                margin = 1.5 * 10.0**-digits if digits else 0.0
                assert float(one) == pytest.approx(float(other), rel=1e-4, abs=margin), f"{line!r}, not {expected!r}"


def flat(value: Any, prefix: str = "") -> dict[str, Any]:
    """Return what a saved object holds, by path."""
    if isinstance(value, dict):
        entries = list(value.items())
    elif isinstance(value, (list, tuple)):
        entries = list(enumerate(value))
    else:
        return {prefix: value}
    found: dict[str, Any] = {}
    for key, one in entries:
        found.update(flat(one, f"{prefix}.{key}" if prefix else str(key)))
    return found
