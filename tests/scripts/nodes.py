"""Regress a value for each node of small graphs: the loss is the mean over nodes, and graphs differ in size."""

import sys

import torch
from torch import nn
from torch.utils.data import DataLoader


def collate(graphs):
    return torch.cat([x for x, _ in graphs]), torch.cat([y for _, y in graphs])


torch.manual_seed(3)
graphs = []
for i in range(160):
    x = torch.randn(2 + i % 7, 4)
    graphs.append((x, x.mean(0, keepdim=True).expand_as(x).sum(1, keepdim=True) + x[:, :1]))
loader = DataLoader(graphs, batch_size=16, shuffle=True, collate_fn=collate)
model = nn.Sequential(nn.Linear(4, 24), nn.ReLU(), nn.Linear(24, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.02)
step = 0
for _ in range(5):
    for x, y in loader:
        loss = nn.functional.mse_loss(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"step {step} loss {loss.item():.8f}")
        step += 1
torch.save(model.state_dict(), sys.argv[-1] if len(sys.argv) > 1 else "model.pt")
