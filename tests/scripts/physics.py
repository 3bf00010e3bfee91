"""Solve u'' = -sin(x) with a network: derivatives in the loss, points from a DataLoader."""

import sys

import torch
from torch import nn
from torch.utils.data import DataLoader


def derivative(u, x):
    return torch.autograd.grad(u, x, torch.ones_like(u), create_graph=True)[0]


if __name__ == "__main__":
    torch.manual_seed(0)
    points = torch.linspace(0, 3.14159265, 240).unsqueeze(1)
    net = nn.Sequential(nn.Linear(1, 20), nn.Tanh(), nn.Linear(20, 20), nn.Tanh(), nn.Linear(20, 1))
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)
    ends = torch.tensor([[0.0], [3.14159265]])
    step = 0
    for _ in range(6):
        for x in DataLoader(points, batch_size=24, shuffle=True):
            x.requires_grad_(True)
            u = net(x)
            residual = derivative(derivative(u, x), x) + torch.sin(x)
            loss = residual.pow(2).mean() + net(ends).pow(2).sum()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            print(f"step {step} loss {loss.item():.8f}")
            step += 1
    torch.save(net.state_dict(), sys.argv[-1] if len(sys.argv) > 1 else "model.pt")
