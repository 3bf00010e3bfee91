"""The last micro-batch of a step is exchanged, with all that was gathered before."""

from contextlib import nullcontext

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

dist.init_process_group("gloo")
torch.manual_seed(0)
x = torch.randn(64, 8)
data = TensorDataset(x, x[:, :1] * 2 + x[:, 1:2].sin())
sampler = DistributedSampler(data)
loader = DataLoader(data, batch_size=4, sampler=sampler)
model = DistributedDataParallel(nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1)))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
for epoch in range(2):
    sampler.set_epoch(epoch)
    for place, (inputs, targets) in enumerate(loader):
        is_last = (place + 1) % 2 == 0
        with nullcontext() if is_last else model.no_sync():
            loss = nn.functional.mse_loss(model(inputs), targets) / 2
            loss.backward()
        if is_last:
            optimizer.step()
            optimizer.zero_grad()
