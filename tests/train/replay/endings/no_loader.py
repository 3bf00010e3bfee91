"""A loop that draws its batches itself, prints a running mean, and evaluates every ten steps."""

import math

import torch
from torch import nn

torch.manual_seed(3)
text = torch.randint(20, (600,))
model = nn.Sequential(nn.Embedding(20, 12), nn.Flatten(), nn.Linear(96, 20))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)


def batch():
    places = torch.randint(len(text) - 9, (24,))
    rows = torch.stack([text[place : place + 9] for place in places])
    return rows[:, :8], rows[:, 8]


running = None
for step in range(60):
    for group in optimizer.param_groups:
        group["lr"] = 1e-2 * (1 + math.cos(math.pi * step / 60)) / 2
    inputs, targets = batch()
    loss = nn.functional.cross_entropy(model(inputs), targets)
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    optimizer.step()
    running = loss.detach() if running is None else 0.9 * running + 0.1 * loss.detach()
    print(f"step {step:4d} loss {loss.item():.9e}", flush=True)
    if step % 10 == 9:
        with torch.no_grad():
            held = [nn.functional.cross_entropy(model(a), b).item() for a, b in (batch() for _ in range(3))]
        print(f"check {step:4d} loss {sum(held):.9e} running {running.item():.9e}", flush=True)
