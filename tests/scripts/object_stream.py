"""An IterableDataset whose batches are objects of the script's own, which hold a tensor."""

import sys

import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset


class Batch:
    def __init__(self, x):
        self.x = x


class Objects(IterableDataset):
    def __iter__(self):
        for _ in range(60):
            yield Batch(torch.randn(12, 4))


torch.manual_seed(0)
model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step, batch in enumerate(DataLoader(Objects(), batch_size=None)):
    loss = model(batch.x).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"step {step} loss {loss.item():.8f}")
torch.save(model.state_dict(), sys.argv[-1] if len(sys.argv) > 1 else "model.pt")
