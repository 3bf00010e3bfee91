"""Wraps its model by itself where it can."""

import os

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
x = torch.randn(120, 4)
y = x.sum(1, keepdim=True)
model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
if "WORLD_SIZE" in os.environ:
    model = DDP(model)
for a, b in DataLoader(TensorDataset(x, y), batch_size=12):
    nn.functional.mse_loss(model(a), b).backward()
    optimizer.step()
