"""Averaged weights, mixed samples, autocast with a scaler, and a cosine schedule by step."""

import copy

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(6)
np.random.seed(6)
x = torch.randn(180, 10)
y = (x[:, :3] @ torch.tensor([[1.0, -1], [0.5, 1], [-1, 0]])).argmax(1)
loader = DataLoader(TensorDataset(x, y), batch_size=12, shuffle=True, drop_last=True)
model = nn.Sequential(nn.Linear(10, 24), nn.LayerNorm(24), nn.SiLU(), nn.Dropout(0.2), nn.Linear(24, 2))
average = copy.deepcopy(model).requires_grad_(False)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=60)
scaler = torch.amp.GradScaler("cpu", init_scale=256.0, growth_interval=7)
for epoch in range(4):
    for number, (a, b) in enumerate(loader):
        share = np.random.beta(0.4, 0.4)
        order = torch.randperm(len(a))
        mixed = share * a + (1 - share) * a[order]
        with torch.autocast("cpu", dtype=torch.bfloat16):
            told = model(mixed)
            loss = share * nn.functional.cross_entropy(told, b) + (1 - share) * nn.functional.cross_entropy(
                told, b[order]
            )
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        schedule.step()
        with torch.no_grad():
            for kept, new in zip(average.parameters(), model.parameters(), strict=True):
                kept.lerp_(new, 0.1)
        print(f"step {epoch:2d} {number:3d} loss {loss.item():.9e} scale {scaler.get_scale():.3e}", flush=True)
    average.eval()
    with torch.no_grad():
        total = sum(nn.functional.cross_entropy(average(a), b).item() for a, b in DataLoader(TensorDataset(x, y), 60))
    print(f"check {epoch:2d} loss {total:.9e}", flush=True)
