"""Trains under DDP with samples whose noise the loader's workers draw, and saves with echelon.checkpoints().

The argument "persistent" lets the workers stay for all epochs.
"""

import os
import random
import sys

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset
from torch.utils.data.distributed import DistributedSampler

import echelon


class Noisy(Dataset):
    def __init__(self, x):
        self.x, self.own = x, np.random.default_rng(7)

    def __len__(self):
        return len(self.x)

    def __getitem__(self, place):
        noise = torch.randn(8) * 0.1 + random.gauss(0, 0.1) + self.own.normal(0, 0.1)
        return (self.x[place] + noise).float()


dist.init_process_group("gloo")
rank, size = dist.get_rank(), dist.get_world_size()
torch.manual_seed(0)
data = Noisy(torch.randn(168, 8))
model = DistributedDataParallel(nn.Linear(8, 1))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
sampler = DistributedSampler(data, seed=3)
lives_on = "persistent" in sys.argv
loader = DataLoader(data, batch_size=12, sampler=sampler, num_workers=2, persistent_workers=lives_on)
torch.manual_seed(rank)
checkpoint = echelon.checkpoints(model=model, optimizer=optimizer, every="1steps")
for epoch in checkpoint.epochs(3):
    sampler.set_epoch(epoch)
    for inputs in checkpoint.batches(loader):
        loss = model(inputs).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        mean = loss.detach().clone()
        dist.all_reduce(mean)
        if rank == 0:
            print("step", checkpoint.step_number + 1, f"loss {mean.item():.9e}", flush=True)
        checkpoint.wait()
        is_first = os.environ["TORCHELASTIC_RESTART_COUNT"] == "0"
        if is_first and checkpoint.step_number + 1 == int(os.environ.get("FAILS_AT", "0")):
            dist.barrier()
            os._exit(9)
dist.destroy_process_group()
