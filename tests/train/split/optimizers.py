"""A few steps with each of the optimizers that are named, from the same weights."""

import sys

import torch
from split_model import GPT, LENGTH

for name in sys.argv[2:]:
    torch.manual_seed(1)
    model = GPT()
    optimizer = getattr(torch.optim, name)(model.parameters(), lr=1e-3)
    for _step in range(4):
        x = torch.randint(24, (8, LENGTH))
        _, loss = model(x, x.flip(1))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"{loss.item():.6f}")
