"""Evolution strategies: no backward(), the gradient is an estimate from perturbed weights, and assigned by hand."""

import sys

import torch
from torch import nn
from torch.nn.utils import parameters_to_vector, vector_to_parameters

torch.manual_seed(0)
x = torch.randn(48, 5)
y = torch.sin(x.sum(1, keepdim=True))
model = nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=0.02)


@torch.no_grad()
def loss_of(vector):
    vector_to_parameters(vector, model.parameters())
    return nn.functional.mse_loss(model(x), y).item()


for step in range(50):
    theta = parameters_to_vector(model.parameters()).detach().clone()
    noise = torch.randn(6, theta.numel())
    losses = torch.tensor([loss_of(theta + 0.1 * one) - loss_of(theta - 0.1 * one) for one in noise])
    gradient = losses @ noise / len(noise) / 0.2
    print(f"step {step} loss {loss_of(theta):.8f}")
    at = 0
    for weight in model.parameters():
        weight.grad = gradient[at : at + weight.numel()].view_as(weight)
        at += weight.numel()
    optimizer.step()
torch.save(model.state_dict(), sys.argv[-1] if len(sys.argv) > 1 else "model.pt")
