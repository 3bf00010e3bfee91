"""Train on several devices, distributed by hand: `scale_ddp.py TASK [MICRO_BATCHES] FOLDER`."""

import sys
from contextlib import nullcontext

import torch
import torch.distributed as dist
from scale_models import TASKS, Window
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler

dist.init_process_group("gloo")
torch.manual_seed(0)
task = TASKS[sys.argv[1]]()
num_micro_batches = int(sys.argv[2]) if len(sys.argv) > 3 else 1
model, window = DistributedDataParallel(task.model), Window(task)
sampler = DistributedSampler(task.dataset, shuffle=True, drop_last=True)
loader = DataLoader(task.dataset, batch_size=task.batch_size // dist.get_world_size(), sampler=sampler, drop_last=True)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)

step, epoch, goes_on = 0, 0, True
while goes_on:
    sampler.set_epoch(epoch)
    epoch += 1
    for inputs, targets in loader:
        optimizer.zero_grad()
        parts = list(zip(inputs.chunk(num_micro_batches), targets.chunk(num_micro_batches), strict=True))
        for number, (some, wanted) in enumerate(parts, 1):
            with model.no_sync() if number < num_micro_batches else nullcontext():
                loss = nn.functional.cross_entropy(model(some), wanted) / num_micro_batches
                loss.backward()
        optimizer.step()
        if step % 20 == 0 and dist.get_rank() == 0:
            print(f"step {step} loss {loss.item():.5f}")
        step += 1
        goes_on = window.step()
        if not goes_on:
            break
if dist.get_rank() == 0:
    window.write(sys.argv[-1])
dist.destroy_process_group()
