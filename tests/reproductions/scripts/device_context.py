"""Weights that are made on the device."""

import torch

with torch.device("cuda"):
    model = torch.nn.Linear(1000, 1000)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(10):
    model(torch.randn(4, 1000, device="cuda")).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
