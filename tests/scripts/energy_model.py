"""An energy model: Langevin steps on samples, by torch.autograd.grad, and a contrastive divergence."""

import sys

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
energy = nn.Sequential(nn.Linear(2, 24), nn.SiLU(), nn.Linear(24, 1))
optimizer = torch.optim.Adam(energy.parameters(), lr=0.003)
loader = DataLoader(TensorDataset(torch.randn(240, 2) * 0.3 + 1), batch_size=24, shuffle=True)
step = 0
for _epoch in range(6):
    for (real,) in loader:
        fake = torch.rand_like(real) * 4 - 2
        for _ in range(4):
            fake = fake.detach().requires_grad_(True)
            gradient = torch.autograd.grad(energy(fake).sum(), fake)[0]
            fake = fake - 0.1 * gradient + 0.01 * torch.randn_like(fake)
        fake = fake.detach()
        real_energy, fake_energy = energy(real), energy(fake)
        loss = (real_energy - fake_energy).mean() + 0.1 * (real_energy.pow(2) + fake_energy.pow(2)).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"step {step} loss {loss.item():.8f} fake {fake.mean().item():.6f}")
        step += 1
torch.save(energy.state_dict(), sys.argv[-1] if len(sys.argv) > 1 else "model.pt")
