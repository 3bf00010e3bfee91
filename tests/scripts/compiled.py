"""A model that torch.compile has compiled, with its loss outside."""

import sys

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
x = torch.randn(240, 8)
y = (x.sum(1) > 0).long()
model = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 2))
compiled = torch.compile(model, backend="aot_eager")
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
step = 0
for _epoch in range(5):
    for a, b in DataLoader(TensorDataset(x, y), batch_size=24, shuffle=True):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(compiled(a), b)
        loss.backward()
        optimizer.step()
        print(f"step {step} loss {loss.item():.8f}")
        step += 1
torch.save(model.state_dict(), sys.argv[-1] if len(sys.argv) > 1 else "model.pt")
