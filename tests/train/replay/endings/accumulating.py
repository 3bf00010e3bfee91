"""Gradients are added up over three batches, and an epoch ends in the middle of a step."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(7)
x = torch.randn(240, 16)
model = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Dropout(0.1), nn.Linear(32, 1))
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
loader = DataLoader(TensorDataset(x), batch_size=12, shuffle=True)
number = 0
for epoch in range(4):
    for (a,) in loader:
        loss = (model(a) - a.sin().sum(1, keepdim=True)).pow(2).mean() / 3
        loss.backward()
        number += 1
        print(f"batch {number:4d} loss {loss.item():.9e}", flush=True)
        if number % 3 == 0:
            optimizer.step()
            optimizer.zero_grad()
    print(f"epoch {epoch:2d} last {loss.item():.9e}", flush=True)
