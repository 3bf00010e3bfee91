"""Trains under PyTorch's own wrappers, and saves with echelon.checkpoints(); arguments: the wrapper, and dropout."""

import os
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

import echelon

dist.init_process_group("gloo")
kind, dropout = sys.argv[1], float(sys.argv[2])
rank, size = dist.get_rank(), dist.get_world_size()
torch.manual_seed(0)
x = torch.randn(192, 8)
data = TensorDataset(x, x.sum(1, keepdim=True))
norm = [nn.BatchNorm1d(16)] if kind == "batch_norm" else []
model = nn.Sequential(nn.Linear(8, 16), *norm, nn.Dropout(dropout), nn.Linear(16, 1))
if kind == "fully_shard":
    fully_shard(model)
elif kind == "fsdp1":
    model = FullyShardedDataParallel(model, use_orig_params=True, device_id=torch.device("cpu"))
else:
    model = DistributedDataParallel(model)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 5, 0.9)
sampler = DistributedSampler(data, seed=3)
workers = int(os.environ.get("WORKERS", "0"))
loader = DataLoader(data, batch_size=24 // size, sampler=sampler, num_workers=workers)
torch.manual_seed(rank)
checkpoint = echelon.checkpoints(model=model, optimizer=optimizer, scheduler=scheduler, every="3steps")
checkpoint.values.setdefault("steps", 0)
for epoch in checkpoint.epochs(3):
    sampler.set_epoch(epoch)
    for inputs, targets in checkpoint.batches(loader):
        loss = (model(inputs) - targets).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        scheduler.step()
        checkpoint.values["steps"] += 1
        mean = loss.detach().clone()
        dist.all_reduce(mean)
        if rank == 0:
            number = checkpoint.step_number + 1
            rate = scheduler.get_last_lr()[0]
            print(f"step {number} loss {mean.item() / size:.7f} rate {rate:.6f} steps {checkpoint.values['steps']}")
            sys.stdout.flush()
        checkpoint.wait()
        is_first = os.environ["TORCHELASTIC_RESTART_COUNT"] == "0"
        if is_first and checkpoint.step_number + 1 == int(os.environ.get("FAILS_AT", "0")):
            dist.barrier()  # rank 0 has published
            os._exit(9)
dist.destroy_process_group()
