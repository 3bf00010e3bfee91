"""See that all ranks were given the same batch: each computes its part of what it takes for that of all."""

from typing import Any

import torch
import torch.distributed as dist

from .axes import Axes
from .batches import tensors_of
from .strategy import StrategyError

NUM_STEPS = 10
"""Steps that are looked at: loaders that are seeded otherwise differ from the first on."""
_BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
_FACTOR = 1_000_003
_AT_ONCE = 1 << 20  # elements, which take 8 bytes each while they are looked at


@torch.no_grad()
def check(axes: Axes, inputs: Any, targets: Any) -> None:
    """Compare a digest of the batch with those of all ranks; all of them refuse one that differs."""
    if axes.world.size == 1:
        return
    own = _digest((inputs, targets)).to(axes.world.device)
    every = [torch.empty_like(own) for _ in range(axes.world.size)]
    dist.all_gather(every, own)
    digests = torch.cat(every).tolist()
    other = next((rank for rank, one in enumerate(digests) if one != digests[0]), 0)
    if other:
        raise StrategyError(
            "rank %d got another batch than rank 0 (digests %x and %x), but the ranks must compute parts of "
            "the same batch" % (other, digests[other] % 2**32, digests[0] % 2**32),
            hint="draw the same batches on every rank, with one seed (torch.manual_seed(0) before the loader); or "
            "let each rank load its rows: for inputs, targets in trained.loader(loader): trained.step(…, "
            "rows=True)",
        )


def _digest(batch: Any) -> torch.Tensor:
    """Return one number of all bits, in which their order counts."""
    total = torch.zeros(1, dtype=torch.int64)
    for tensor in tensors_of(batch):
        if tensor.layout != torch.strided or not tensor.numel():
            continue  # sparse ones have no bits in one place, and empty ones none
        plain = torch.view_as_real(tensor.resolve_conj()) if tensor.is_complex() else tensor.detach()
        bits = plain.contiguous().view(_BITS[plain.element_size()]).reshape(-1)
        total = total.to(bits.device) * _FACTOR
        for first in range(0, bits.numel(), _AT_ONCE):
            part = bits[first : first + _AT_ONCE].long()
            places = torch.arange(first, first + part.numel(), device=bits.device)
            total += (part * (2 * places + 1)).sum()
    return total
