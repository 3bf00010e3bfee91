"""Equilibrium models: backward() solves an equation with torch.autograd.grad, in a hook and in a function."""

import sys

import torch
from torch import nn


class Equilibrium(torch.autograd.Function):
    @staticmethod
    def forward(ctx, cell, z, x, *weights):
        with torch.no_grad():
            for _ in range(15):
                z = cell(z, x)
        ctx.cell = cell
        ctx.save_for_backward(z, x, *weights)
        return z.clone()

    @staticmethod
    def backward(ctx, gradient):
        z, x, *weights = ctx.saved_tensors
        with torch.enable_grad():
            z, x = z.detach().requires_grad_(), x.detach().requires_grad_()
            after = ctx.cell(z, x)
            adjoint = gradient
            for _ in range(8):
                adjoint = torch.autograd.grad(after, z, adjoint, retain_graph=True)[0] + gradient
            return None, None, *torch.autograd.grad(after, [x, *weights], adjoint)


class Cell(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(8, 8)
        nn.init.normal_(self.inner.weight, std=0.1)

    def forward(self, z, x):
        return torch.tanh(self.inner(z) + x)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.into, self.first, self.second, self.head = nn.Linear(6, 8), Cell(), Cell(), nn.Linear(8, 2)

    def forward(self, x):
        h = self.into(x)
        z = Equilibrium.apply(self.first, torch.zeros_like(h), h, *self.first.parameters())
        with torch.no_grad():
            fixed = torch.zeros_like(z)
            for _ in range(15):
                fixed = self.second(fixed, z)
        result = self.second(fixed, z)
        start = fixed.requires_grad_()
        once = self.second(start, z.detach())

        def solve(gradient):
            adjoint = gradient
            for _ in range(8):
                adjoint = torch.autograd.grad(once, start, adjoint, retain_graph=True)[0] + gradient
            return adjoint

        if result.requires_grad:
            result.register_hook(solve)
        return self.head(result)


torch.manual_seed(0)
x = torch.randn(100, 6)
y = (x.prod(1) > 0).long()
model = Net()
optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
step = 0
for _ in range(9):
    for rows in torch.randperm(100).split(17):
        loss = nn.functional.cross_entropy(model(x[rows]), y[rows])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"step {step} loss {loss.item():.8f}")
        step += 1
torch.save(model.state_dict(), sys.argv[-1] if len(sys.argv) > 1 else "model.pt")
