"""A function prints after each epoch what the last step has left in its variables."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def fit(epochs):
    torch.manual_seed(4)
    x = torch.randn(192, 6)
    loader = DataLoader(TensorDataset(x, x.sum(1, keepdim=True)), batch_size=12, shuffle=True)
    model = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    best = None
    for epoch in range(epochs):
        total = 0.0
        for number, (a, b) in enumerate(loader):
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(model(a), b)
            loss.backward()
            size = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            total += loss.detach()
            print(f"step {epoch:2d} {number:3d} loss {loss.item():.9e}", flush=True)
        best = loss if best is None else torch.minimum(best, loss.detach())
        print(f"epoch {epoch:2d} gradient {size:.9e} total {total:.9e} best {best:.9e}", flush=True)
    return model


print(f"weights {sum(one.double().abs().sum().item() for one in fit(4).parameters()):.9e}", flush=True)
