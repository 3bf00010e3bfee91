"""Layers that are skipped in some steps, and a head that is used first in the twentieth."""

import sys

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Skipping(nn.Module):
    def __init__(self):
        super().__init__()
        self.inp = nn.Linear(4, 16)
        self.blocks = nn.ModuleList(nn.Linear(16, 16) for _ in range(3))
        self.out, self.late = nn.Linear(16, 1), nn.Linear(16, 1)
        self.never = nn.Linear(3, 3)

    def forward(self, x, step):
        h = torch.relu(self.inp(x))
        for i, block in enumerate(self.blocks):
            if step < 5 or (step + i) % 3:
                h = h + torch.relu(block(h))
        return self.out(h) + (self.late(h) if step >= 20 else 0)


torch.manual_seed(0)
x = torch.randn(200, 4)
y = x.norm(dim=1, keepdim=True)
model = Skipping()
optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=0.1)
step = 0
for _ in range(5):
    for a, b in DataLoader(TensorDataset(x, y), batch_size=18, shuffle=True):
        loss = nn.functional.mse_loss(model(a, step), b)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"step {step} loss {loss.item():.8f}")
        step += 1
torch.save(model.state_dict(), sys.argv[-1] if len(sys.argv) > 1 else "model.pt")
