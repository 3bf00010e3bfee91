"""Activation checkpointing, dropout, two groups with a schedule, and losses of rank 0 printed."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(8, 16)
        self.drop = nn.Dropout(0.2)
        self.second = nn.Linear(16, 1)

    def forward(self, x):
        return self.second(self.drop(checkpoint(lambda y: torch.relu(self.first(y)), x, use_reentrant=False)))


dist.init_process_group("gloo")
torch.manual_seed(0)
x = torch.randn(64, 8)
data = TensorDataset(x, x[:, :1] * 2 + x[:, 1:2].sin())
sampler = DistributedSampler(data)
loader = DataLoader(data, batch_size=8, sampler=sampler)
model = DistributedDataParallel(Net())
first, second = model.module.first.parameters(), model.module.second.parameters()
optimizer = torch.optim.AdamW([{"params": first, "lr": 1e-3}, {"params": second}], lr=1e-2)
schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, [1e-3, 1e-2], total_steps=len(loader) * 2)
for epoch in range(2):
    sampler.set_epoch(epoch)
    for inputs, targets in loader:
        loss = nn.functional.mse_loss(model(inputs), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        if dist.get_rank() == 0:
            print("loss", loss.item())
