"""An epoch's order is a permutation, and a batch a slice of it."""

import sys

import torch
from torch import nn


def batches(x, y, size):
    order = torch.randperm(len(x))
    for i in range(0, len(x), size):
        yield x[order[i : i + size]], y[order[i : i + size]]


def main():
    torch.manual_seed(0)
    x = torch.randn(120, 4)
    model = nn.Linear(4, 1)
    optimizer = torch.optim.Adam(model.parameters())
    step = 0
    for epoch in range(5):
        for a, b in batches(x, x.sum(1, keepdim=True), 12):
            loss = nn.functional.mse_loss(model(a), b)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            print(f"step {step} loss {loss.item():.8f}")
            step += 1
        print(f"epoch {epoch} done")
    torch.save(model.state_dict(), sys.argv[-1] if len(sys.argv) > 1 else "model.pt")


main()
