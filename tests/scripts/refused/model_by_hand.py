"""A model whose weights are changed by hand, with a learning rate of its own."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
for step, (x, y) in enumerate(DataLoader(TensorDataset(torch.randn(64, 4), torch.randn(64, 1)), batch_size=16)):
    loss = ((model(x) - y) ** 2).mean()
    model.zero_grad()
    loss.backward()
    with torch.no_grad():
        for p in model.parameters():
            p -= 0.1 * p.grad
    print(f"step {step} loss {loss.item():.8f}")
