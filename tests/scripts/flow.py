"""A normalizing flow: masked affine layers, log determinants, and a base distribution outside of the model."""

import sys

import torch
from torch import distributions, nn


class RealNVP(nn.Module):
    def __init__(self):
        super().__init__()
        net = lambda: nn.Sequential(nn.Linear(2, 16), nn.LeakyReLU(), nn.Linear(16, 2), nn.Tanh())  # noqa: E731
        self.mask = nn.Parameter(torch.tensor([[0.0, 1.0], [1.0, 0.0]] * 2), requires_grad=False)
        self.t, self.s = (nn.ModuleList(net() for _ in range(4)) for _ in range(2))

    def forward(self, x):
        log_det = x.new_zeros(x.shape[0])
        for i in reversed(range(4)):
            kept = self.mask[i] * x
            s, t = self.s[i](kept) * (1 - self.mask[i]), self.t[i](kept) * (1 - self.mask[i])
            x = (1 - self.mask[i]) * (x - t) * torch.exp(-s) + kept
            log_det -= s.sum(dim=1)
        return x, log_det


torch.manual_seed(0)
prior = distributions.MultivariateNormal(torch.zeros(2), torch.eye(2))
flow = RealNVP()
optimizer = torch.optim.Adam([p for p in flow.parameters() if p.requires_grad], lr=0.005)
for step in range(60):
    angle = torch.rand(80) * 3.14159
    x = torch.stack([angle.cos(), angle.sin()], 1) + 0.05 * torch.randn(80, 2)
    z, log_det = flow(x)
    loss = -(prior.log_prob(z) + log_det).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"step {step} loss {loss.item():.8f}")
torch.save(flow.state_dict(), sys.argv[-1] if len(sys.argv) > 1 else "model.pt")
