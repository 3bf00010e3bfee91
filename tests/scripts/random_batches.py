"""Batches are drawn by hand from an array, without a DataLoader."""

import sys

import torch
from torch import nn

torch.manual_seed(0)
x = torch.randn(120, 4)
y = x.sum(1, keepdim=True)
model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(50):
    rows = torch.randint(0, len(x), (12,))
    loss = nn.functional.mse_loss(model(x[rows]), y[rows])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"step {step} loss {loss.item():.8f}")
torch.save(model.state_dict(), sys.argv[-1] if len(sys.argv) > 1 else "model.pt")
