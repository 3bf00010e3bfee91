"""Gradients that travel in fewer bytes than they have, by hooks of DistributedDataParallel."""

from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import GradBucket
from torch.nn.parallel import DistributedDataParallel

from . import groups

ONE_BUCKET_MEGABYTES = float(1 << 20)
_DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}


def is_of_matrices(how: str) -> bool:
    """Say whether gradients travel as factors of matrices, which takes several messages one after the other."""
    return how.startswith("powersgd")


def described(how: str) -> str:
    """Return what a person is told, after what else is said of the run."""
    if not how:
        return ""
    if not is_of_matrices(how):
        return "; gradients travel as %s" % how
    return "; gradients travel as powersgd's factors of rank %s from step %s on" % tuple(how.split(":")[1:])


def compress(model: DistributedDataParallel, how: str) -> None:
    """Have gradients travel as "bf16", "fp16" or "powersgd:RANK:STEP" says; they are whole for an empty text."""
    if how in _DTYPES:
        model.register_comm_hook(_DTYPES[how], _narrow)
    elif is_of_matrices(how):
        from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook  # it needs numpy

        rank, step = (int(one) for one in how.split(":")[1:])
        group = groups.new()  # its messages begin in other threads, and must not mix with those of the script
        state = powerSGD_hook.PowerSGDState(group, matrix_approximation_rank=rank, start_powerSGD_iter=step)
        model.register_comm_hook(state, powerSGD_hook.powerSGD_hook)


def _narrow(dtype: torch.dtype, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
    """Send the mean's parts in 16 bits; PyTorch's own hook for bf16 is refused on CPUs, where it would work."""
    whole = bucket.buffer()
    narrow = whole.to(dtype).div_(dist.get_world_size())

    def widen(sent: Any) -> torch.Tensor:
        result: torch.Tensor = whole.copy_(sent.value()[0])
        return result

    sent = dist.all_reduce(narrow, async_op=True).get_future()
    return sent.then(widen)  # type: ignore[no-any-return]
