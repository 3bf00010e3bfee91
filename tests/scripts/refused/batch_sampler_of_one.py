"""One sample a step, from a batch sampler: the loader itself has no batch size."""

import sys

import torch
from torch import nn
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, TensorDataset

torch.manual_seed(0)
x = torch.randn(120, 4)
y = x.sum(1, keepdim=True)
model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
dataset = TensorDataset(x, y)
for a, b in DataLoader(dataset, batch_sampler=BatchSampler(RandomSampler(dataset), 1, drop_last=False)):
    loss = nn.functional.mse_loss(model(a), b)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
torch.save(model.state_dict(), sys.argv[-1] if len(sys.argv) > 1 else "model.pt")
