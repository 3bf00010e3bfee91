"""Adversarial training: a step along the sign of the batch's gradient, then several projected steps of a delta."""

import sys

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def fgsm(model, x, y, epsilon):
    x = x.clone().detach()
    x.requires_grad = True
    loss = F.cross_entropy(model(x), y)
    model.zero_grad()
    loss.backward()
    return torch.clamp(x + epsilon * x.grad.data.sign(), -3, 3).detach()


def pgd(model, x, y, epsilon, alpha, num_iter):
    delta = torch.zeros_like(x, requires_grad=True)
    for _ in range(num_iter):
        loss = F.cross_entropy(model(x + delta), y)
        loss.backward()
        delta.data = (delta + alpha * delta.grad.detach().sign()).clamp(-epsilon, epsilon)
        delta.grad.zero_()
    return delta.detach()


torch.manual_seed(0)
x = torch.randn(220, 6)
loader = DataLoader(TensorDataset(x, (x.sum(1) > 0).long() + (x[:, 0] > 0).long()), batch_size=22, shuffle=True)
model = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 3))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
step = 0
for epoch in range(6):
    for xb, yb in loader:
        adv = fgsm(model, xb, yb, 0.1) if epoch % 2 else xb + pgd(model, xb, yb, 0.1, 0.04, 3)
        optimizer.zero_grad()
        loss = F.cross_entropy(model(adv), yb)
        loss.backward()
        optimizer.step()
        print(f"step {step} loss {loss.item():.8f} moved {(adv - xb).abs().mean().item():.6f}")
        step += 1
torch.save(model.state_dict(), sys.argv[-1] if len(sys.argv) > 1 else "model.pt")
