"""Compress gradients for their exchange, with communication hooks of DistributedDataParallel."""

from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from ..pytorch import distributed
from . import groups

ONE_BUCKET_MEGABYTES = float(1 << 20)
_DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}


def is_of_matrices(how: str) -> bool:
    """Say whether gradients travel as factors of matrices, which takes several messages in sequence."""
    return how.startswith("powersgd")


def described(how: str) -> str:
    """Return the end of the line about the run that a person reads."""
    if not how:
        return ""
    if not is_of_matrices(how):
        return "; gradients travel as %s" % how
    return "; gradients travel as powersgd's factors of rank %s from step %s on" % tuple(how.split(":")[1:])


def compress(model: DistributedDataParallel, how: str) -> None:
    """Let gradients travel as "bf16", "fp16" or "powersgd:RANK:STEP"; an empty text leaves them uncompressed."""
    if how in _DTYPES:
        model.register_comm_hook(_DTYPES[how], _narrow)
    elif is_of_matrices(how):
        from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook  # it needs numpy

        rank, step = (int(one) for one in how.split(":")[1:])
        group = groups.new()  # other threads send its messages, which must not mix with those of the script
        state = powerSGD_hook.PowerSGDState(group, matrix_approximation_rank=rank, start_powerSGD_iter=step)
        model.register_comm_hook(state, powerSGD_hook.powerSGD_hook)


def _narrow(dtype: torch.dtype, bucket: distributed.GradBucket) -> torch.futures.Future[torch.Tensor]:
    """Exchange the parts of the mean in 16 bits; PyTorch's own bf16 hook refuses CPUs, where it would work."""
    whole = bucket.buffer()
    narrow = whole.to(dtype).div_(dist.get_world_size())

    def widen(sent: Any) -> torch.Tensor:
        result: torch.Tensor = whole.copy_(sent.value()[0])
        return result

    sent = dist.all_reduce(narrow, async_op=True).get_future()
    return sent.then(widen)  # type: ignore[no-any-return]
