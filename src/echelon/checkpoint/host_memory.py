"""Copies of tensors in the memory of the host, and how much of it a copy needs."""

from collections.abc import Iterator, Sequence

import torch

from . import safetensors

BLOCK_BYTES = 64 << 20
"""PyTorch rounds pinned memory up to a power of two, so that one large block would waste up to half."""
SHARE_OF_AVAILABLE = 0.9  # the rest is for what the training itself allocates while the checkpoint is written


def needed_bytes(num_bytes: int) -> int:
    """Return the host memory that copies of so many bytes take.

    >>> needed_bytes(100), needed_bytes((64 << 20) + 1) >> 20
    (128, 64)
    """
    rest = num_bytes % BLOCK_BYTES
    return num_bytes if rest == 0 else num_bytes - rest + _block_bytes(rest)


class HostCopies:
    """Blocks of host memory for the bytes of tensors; they are kept and used again by the next save."""

    def __init__(self) -> None:
        self._blocks: list[torch.Tensor] = []
        self._num_bytes = 0

    @property
    def held_bytes(self) -> int:
        return sum(block.numel() for block in self._blocks)

    def copy(self, tensors: Sequence[torch.Tensor], num_bytes: int) -> None:
        """Copy the bytes of tensors, one after the other; from CUDA into pinned memory, without waiting in between."""
        self._hold(num_bytes, any(tensor.is_cuda for tensor in tensors))
        position = 0
        for tensor in tensors:
            if tensor.numel():
                position = self._append(safetensors.plain(tensor).contiguous().reshape(-1).view(torch.uint8), position)
        for device in {tensor.device for tensor in tensors if tensor.is_cuda}:
            torch.cuda.synchronize(device)
        self._num_bytes = position

    def parts(self) -> Iterator[memoryview]:
        rest = self._num_bytes
        for block in self._blocks:
            if rest <= 0:
                return
            yield from safetensors.raw_parts(block[: min(rest, block.numel())])
            rest -= block.numel()

    def _append(self, flat: torch.Tensor, position: int) -> int:
        done = 0
        while done < flat.numel():
            index, start = divmod(position, BLOCK_BYTES)
            length = min(flat.numel() - done, self._blocks[index].numel() - start)
            source = flat[done : done + length]
            self._blocks[index][start : start + length].copy_(source, non_blocking=source.is_cuda)
            done, position = done + length, position + length
        return position

    def _hold(self, num_bytes: int, is_pinned: bool) -> None:
        if self._blocks and self._blocks[0].is_pinned() != is_pinned:
            self._blocks = []
        sizes = [BLOCK_BYTES] * (num_bytes // BLOCK_BYTES)
        if num_bytes % BLOCK_BYTES:
            sizes.append(_block_bytes(num_bytes % BLOCK_BYTES))
        del self._blocks[len(sizes) :]
        for index, size in enumerate(sizes):
            if index < len(self._blocks) and self._blocks[index].numel() >= size:
                continue
            block = torch.empty(size, dtype=torch.uint8, pin_memory=is_pinned)
            self._blocks[index : index + 1] = [block]


def _block_bytes(num_bytes: int) -> int:
    return 1 << (num_bytes - 1).bit_length()
