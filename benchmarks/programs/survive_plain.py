"""A training for one device whose steps take 30 ms: each step prints the time of its end. It saves nothing itself."""

import time

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
x = torch.randn(4096, 32)
loader = DataLoader(TensorDataset(x, x.sum(1, keepdim=True)), batch_size=32, shuffle=True)
model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 1))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
for step, (inputs, targets) in enumerate(loader, 1):
    loss = nn.functional.mse_loss(model(inputs), targets)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    time.sleep(0.03)
    print(f"step {step} at {time.time():.3f} loss {loss.item():.6f}", flush=True)
    if step == 100:
        break
