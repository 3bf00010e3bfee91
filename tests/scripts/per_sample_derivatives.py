"""Derivatives by torch.func of a model for each sample, beside a loss of the whole batch."""

import sys

import torch
from torch import nn
from torch.func import functional_call, hessian, jacrev, vmap
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(2, 16), nn.Tanh(), nn.Linear(16, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)


def field(points):
    return model(points).squeeze(-1)


def slope_of(weights):
    return vmap(jacrev(lambda point: functional_call(model, weights, (point,)).squeeze(-1)))


for points, targets in DataLoader(TensorDataset(torch.rand(48, 2), torch.rand(48)), batch_size=8):
    curvature = vmap(hessian(field))(points)
    slope = slope_of(dict(model.named_parameters()))(points)
    equation = curvature[:, 0, 0] + curvature[:, 1, 1] - targets
    loss = equation.pow(2).mean() + (field(points) - targets).pow(2).mean() + 0.1 * slope.pow(2).sum(1).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"loss {loss.item():.8f}")
torch.save(model.state_dict(), sys.argv[-1] if len(sys.argv) > 1 else "model.pt")
