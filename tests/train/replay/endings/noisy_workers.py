"""Workers that load draw noise from three generators, and one loader keeps its workers."""

import random

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Noisy(Dataset):
    def __init__(self, x):
        self.x = x

    def __len__(self):
        return len(self.x)

    def __getitem__(self, place):
        noise = torch.randn(5) * 0.1 + random.gauss(0, 0.1) + np.random.normal(0, 0.1)
        return (self.x[place] + noise).float(), self.x[place].prod()


def seed(worker):
    np.random.seed(torch.initial_seed() % 2**31 + worker)


torch.manual_seed(11)
x = torch.randn(192, 5)
loader = DataLoader(Noisy(x), 12, shuffle=True, num_workers=2, worker_init_fn=seed, persistent_workers=True)
check = DataLoader(Noisy(x[:24]), 12, num_workers=1, worker_init_fn=seed)
model = nn.Sequential(nn.Linear(5, 24), nn.ReLU(), nn.Linear(24, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
for epoch in range(4):
    for number, (a, b) in enumerate(loader):
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(a)[:, 0], b)
        loss.backward()
        optimizer.step()
        print(f"step {epoch:2d} {number:3d} loss {loss.item():.9e}", flush=True)
    with torch.no_grad():
        total = sum(nn.functional.mse_loss(model(a)[:, 0], b, reduction="sum").item() for a, b in check)
    print(f"check {epoch:2d} loss {total:.9e}", flush=True)
