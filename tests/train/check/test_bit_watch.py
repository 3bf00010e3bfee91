"""A bit that flips on one rank is named before the next checkpoint; without a fault nothing is said."""

from collections import Counter

import torch
from tests.tiers import pick
from tests.train.check import flipping
from tests.train.strategies import ranks

from echelon.train.check.bit_watch import bit_sum

NUM_FLIPS = pick(6, all=102)


def test_flipped_bits_are_named() -> None:
    """Of 100 single bits at random places 95 are named, with their rank; the others do not alter a weight."""
    worlds = [ranks.run(3, flipping.flipped, number) for number in range(NUM_FLIPS)]
    named: Counter[str] = Counter()
    for world in worlds:
        kind, where, said = world[0]
        assert len({text for _, _, text in world}) == 1  # all ranks end, with the same words
        if said:
            assert said.startswith(f"rank {where} ("), said
            named[kind] += 1
        else:
            assert kind == "gradient"
    assert named.total() >= 0.95 * NUM_FLIPS, named


def test_no_fault_no_word() -> None:
    steps = pick(500, all=5_000, soak=100_000)
    assert ranks.run(2, flipping.healthy, steps) == [steps, steps]


def test_every_bit_counts() -> None:
    """Also of numbers that are equal, such as zeros of both signs, and of those that are none."""
    for dtype in (torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.int64, torch.uint8, torch.bool):
        tensor = torch.ones(5, 3).to(dtype)
        bits = tensor.view(torch.uint8)
        before = bit_sum(tensor).item()
        for place in range(bits.shape[1]):
            bits[2, place] ^= 1
            assert bit_sum(tensor).item() != before
            bits[2, place] ^= 1
        assert bit_sum(tensor).item() == before
        assert bit_sum(tensor.T).item() == before
    number = torch.tensor([1 + 2j])
    assert bit_sum(number).item() != bit_sum(number.conj().resolve_conj()).item()
