"""Few labelled and many unlabelled samples: two loaders in one loop, one loss of both."""

import sys
from itertools import cycle

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

LABELLED, UNLABELLED = 12, 24

torch.manual_seed(0)
x, u = torch.randn(8 * LABELLED, 6), torch.randn(18 * UNLABELLED, 6)
y = (x.sum(1) > 0).long()
labelled = DataLoader(TensorDataset(x, y), batch_size=LABELLED, shuffle=True)
unlabelled = DataLoader(TensorDataset(u, u + 0.1 * torch.randn_like(u)), batch_size=UNLABELLED, shuffle=True)
model = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 2))
optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
step = 0
for _epoch in range(3):
    for (a, b), (weak, strong) in zip(cycle(labelled), unlabelled, strict=False):
        supervised = nn.functional.cross_entropy(model(a), b)
        consistency = nn.functional.mse_loss(model(strong), model(weak).detach())
        loss = supervised + 0.5 * consistency
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"step {step} loss {loss.item():.8f}")
        step += 1
torch.save(model.state_dict(), sys.argv[-1] if len(sys.argv) > 1 else "model.pt")
