import sys

import torch
import torch.nn as nn
from torch.utils.data import DataLoader


class Denoiser(nn.Module):
    def __init__(self, steps):
        super().__init__()
        self.time = nn.Embedding(steps, 16)
        self.net = nn.Sequential(nn.Linear(2 + 16, 32), nn.SiLU(), nn.Linear(32, 2))

    def forward(self, x, t):
        return self.net(torch.cat([x, self.time(t)], dim=-1))


T = 20
torch.manual_seed(0)
angles = torch.rand(256) * 6.2831853
points = torch.stack([angles.cos(), angles.sin()], dim=1)
betas = torch.linspace(1e-3, 0.2, T)
alphas_bar = torch.cumprod(1 - betas, dim=0)
loader = DataLoader(points, batch_size=32, shuffle=True, drop_last=True)
model = Denoiser(T)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
step = 0
for _epoch in range(8):
    for x0 in loader:
        t = torch.randint(0, T, (x0.shape[0],))
        noise = torch.randn_like(x0)
        a = alphas_bar[t].unsqueeze(1)
        xt = a.sqrt() * x0 + (1 - a).sqrt() * noise
        loss = nn.functional.mse_loss(model(xt, t), noise)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"step {step} loss {loss.item():.7f}")
        step += 1
torch.save(model.state_dict(), sys.argv[1] if len(sys.argv) > 1 else "model.pt")
