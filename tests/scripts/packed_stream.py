"""Batches of an IterableDataset whose tensors count different things: nodes and graphs."""

import sys

import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset


class Packed(IterableDataset):
    def __iter__(self):
        for i in range(60):
            sizes = torch.tensor([2 + (i + k) % 3 for k in range(6)])
            yield torch.randn(int(sizes.sum()), 4), sizes


torch.manual_seed(0)
model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step, (x, sizes) in enumerate(DataLoader(Packed(), batch_size=None)):
    loss = torch.stack([part.sum() for part in model(x).split(sizes.tolist())]).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"step {step} loss {loss.item():.8f}")
torch.save(model.state_dict(), sys.argv[-1] if len(sys.argv) > 1 else "model.pt")
