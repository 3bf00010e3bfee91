"""Sharpness-aware minimization: weights climb along the first gradient, a second one is taken there."""

import sys

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class SAM(torch.optim.Optimizer):
    def __init__(self, params, base, rho=0.05, **kwargs):
        super().__init__(params, {"rho": rho, **kwargs})
        self.base = base(self.param_groups, **kwargs)
        self.param_groups = self.base.param_groups

    @torch.no_grad()
    def first_step(self):
        every = [p for group in self.param_groups for p in group["params"]]
        norm = torch.stack([p.grad.norm() for p in every]).norm()
        for p in every:
            self.state[p]["old"] = p.clone()
            p.add_(p.grad * (self.param_groups[0]["rho"] / (norm + 1e-12)))
        self.zero_grad()

    @torch.no_grad()
    def second_step(self):
        for group in self.param_groups:
            for p in group["params"]:
                p.copy_(self.state[p]["old"])
        self.base.step()
        self.zero_grad()


torch.manual_seed(0)
x = torch.randn(240, 6)
y = (x[:, 0] * x[:, 1]).unsqueeze(1)
model = nn.Sequential(nn.Linear(6, 24), nn.Tanh(), nn.Linear(24, 1))
optimizer = SAM(model.parameters(), torch.optim.SGD, lr=0.05, momentum=0.9)
step = 0
for _ in range(5):
    for a, b in DataLoader(TensorDataset(x, y), batch_size=20, shuffle=True):
        loss = nn.functional.mse_loss(model(a), b)
        loss.backward()
        optimizer.first_step()
        nn.functional.mse_loss(model(a), b).backward()
        optimizer.second_step()
        print(f"step {step} loss {loss.item():.8f}")
        step += 1
torch.save(model.state_dict(), sys.argv[-1] if len(sys.argv) > 1 else "model.pt")
