"""Adds up the losses of an epoch and calls backward() on the sum when the loop is over."""

import sys

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
x = torch.randn(120, 4)
y = x.sum(1, keepdim=True)
model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
loader = DataLoader(TensorDataset(x, y), batch_size=12, shuffle=True)
for epoch in range(50):
    total = 0
    for a, b in loader:
        total = total + nn.functional.mse_loss(model(a), b) / len(loader)
    optimizer.zero_grad()
    total.backward()
    optimizer.step()
    print(f"step {epoch} loss {total.item():.8f}")
torch.save(model.state_dict(), sys.argv[-1] if len(sys.argv) > 1 else "model.pt")
