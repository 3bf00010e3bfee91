"""The asynchronous mean of many tensors over all ranks, in few messages."""

from typing import Any, Callable, List, Sequence

import torch
import torch.distributed as dist

from ..world import World

_BUNDLE_BYTES = 32 << 20
_NARROW = (torch.half, torch.bfloat16)


def start_mean(tensors: Sequence[torch.Tensor], world: World, group: Any) -> Callable[[], List[torch.Tensor]]:
    """Start the mean over all ranks; return a function that waits for the means."""
    bundles = _bundles(tensors)
    flats = [_flat(bundle) for bundle in bundles]
    works = [dist.all_reduce(flat, group=group, async_op=True) for flat in flats]

    def wait() -> List[torch.Tensor]:
        means: List[torch.Tensor] = []
        for bundle, flat, work in zip(bundles, flats, works):  # noqa: B905
            work.wait()
            parts = torch.split(flat.div_(world.size), [one.numel() for one in bundle])
            means += [part.view(one.shape).to(one.dtype) for part, one in zip(parts, bundle)]  # noqa: B905
        return means

    return wait


def _flat(bundle: Sequence[torch.Tensor]) -> torch.Tensor:
    """Return several tensors as one flat tensor; a sum over ranks needs more digits than 16-bit weights have."""
    flat = torch.cat([one.detach().reshape(-1) for one in bundle])
    return flat.float() if flat.dtype in _NARROW else flat


def _bundles(tensors: Sequence[torch.Tensor]) -> List[List[torch.Tensor]]:
    """Group neighbouring tensors of the same dtype and device, up to a maximum size."""
    bundles: List[List[torch.Tensor]] = []
    num_bytes = 0
    for tensor in tensors:
        size = tensor.numel() * tensor.element_size()
        last = bundles[-1][0] if bundles else None
        if (
            last is None
            or last.dtype != tensor.dtype
            or last.device != tensor.device
            or num_bytes + size > _BUNDLE_BYTES
        ):
            bundles.append([])
            num_bytes = 0
        bundles[-1].append(tensor)
        num_bytes += size
    return bundles
