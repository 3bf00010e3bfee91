"""The loss is divided by the backward passes that this rank makes."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
torch.manual_seed(0)
x = torch.randn(64, 8)
y = x[:, :1] * 2 + x[:, 1:2].sin()
rank, num_ranks = dist.get_rank(), dist.get_world_size()
accumulate = 4
steps = accumulate // num_ranks
model = DistributedDataParallel(nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1)))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
for first in range(0, 64, 16):
    for micro in range(steps):
        begin = first + 4 * (rank * steps + micro)
        loss = nn.functional.mse_loss(model(x[begin : begin + 4]), y[begin : begin + 4])
        (loss / steps).backward()
    optimizer.step()
    optimizer.zero_grad()
