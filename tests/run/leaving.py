"""Ranks that leave each other in a collective, in the way that the first argument names."""

import ctypes
import datetime
import os
import signal
import sys

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader

how = sys.argv[1]
dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=600 if how == "hang" else 3))
rank = dist.get_rank()
pair = dist.new_group([0, 1])
values = torch.ones(4)


class TwoHeads(torch.nn.Module):
    """Uses one of its two heads."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.cls, self.reg = (torch.nn.Linear(4, 4) for _ in range(3))

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        """Return what the head of this rank computes."""
        head = self.cls if rank else self.reg  # the line of the heads
        result: torch.Tensor = head(self.body(rows))
        return result


def compute() -> None:
    """Do what takes longer than the others wait."""
    sum(range(10**12))  # the line of computing


for _ in range(2):
    dist.all_reduce(values)  # the line of the first calls
if how == "shape" and rank == 1:
    dist.all_reduce(torch.ones(3, 5))  # the line of another shape
elif how == "kind" and rank == 1:
    dist.barrier()  # the line of another kind
elif how == "early" and rank == 0:
    sys.exit()
elif how == "late" and rank == 0:
    compute()
elif how == "killed" and rank == 1:
    os.kill(os.getpid(), signal.SIGKILL)
elif how == "crashed" and rank == 1:
    ctypes.string_at(0)  # the line of a crash
elif how == "exit" and rank == 1:
    os._exit(3)
elif how in ("uneven", "unused"):
    model = DistributedDataParallel(TwoHeads() if how == "unused" else torch.nn.Linear(4, 1))
    loader = DataLoader(torch.ones(3 if rank == 0 else 2, 4))
    for batch in loader:  # the line of the loop
        model(batch).sum().backward()  # the line of backward
elif how == "hang" and rank == 0:
    dist.barrier(pair)  # the line of a group
dist.all_reduce(values)  # the line of the last call
