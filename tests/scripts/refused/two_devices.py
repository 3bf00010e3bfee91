"""Half of the model is on another device (meta stands in for a second accelerator)."""

import sys

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
x = torch.randn(120, 4)
y = x.sum(1, keepdim=True)
model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 1, device="meta"))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for a, b in DataLoader(TensorDataset(x, y), batch_size=12):
    optimizer.zero_grad()
    nn.functional.mse_loss(model(a.to("meta")), b).backward()
    optimizer.step()
torch.save(model[0].state_dict(), sys.argv[-1] if len(sys.argv) > 1 else "model.pt")
