"""Two networks of a tutorial: both forwards, then both backwards, then both steps."""

import sys

import torch
from torch import nn

torch.manual_seed(0)
x = torch.linspace(-1, 1, 100).unsqueeze(1)
y = x.pow(2) + 0.1 * torch.randn(x.size())
overfitting = nn.Sequential(nn.Linear(1, 24), nn.ReLU(), nn.Linear(24, 24), nn.ReLU(), nn.Linear(24, 1))
small = nn.Sequential(nn.Linear(1, 8), nn.ReLU(), nn.Linear(8, 1))
optimizer_over = torch.optim.Adam(overfitting.parameters(), lr=0.01)
optimizer_small = torch.optim.Adam(small.parameters(), lr=0.01)
criterion = nn.MSELoss()
for step in range(60):
    loss_over = criterion(overfitting(x), y)
    loss_small = criterion(small(x), y)
    optimizer_over.zero_grad()
    optimizer_small.zero_grad()
    loss_over.backward()
    loss_small.backward()
    optimizer_over.step()
    optimizer_small.step()
    print(f"step {step} loss {loss_over.item():.8f} small {loss_small.item():.8f}")
models = {"over": overfitting.state_dict(), "small": small.state_dict()}
torch.save(models, sys.argv[-1] if len(sys.argv) > 1 else "model.pt")
