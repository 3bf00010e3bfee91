"""Diffusion of images with an average of the weights by deepcopy, samples after the training, autocast."""

import copy
import math

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader

device = torch.device("cuda") if torch.cuda.is_available() else torch.device("cpu")
T = 100


def extract(a, t, x_shape):
    out = a.gather(-1, t)
    return out.reshape(t.shape[0], *((1,) * (len(x_shape) - 1)))


class TimeEmbedding(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.dim = dim

    def forward(self, time):
        half = self.dim // 2
        rates = torch.exp(torch.arange(half, device=time.device) * -(math.log(10000) / (half - 1)))
        angles = time[:, None] * rates[None, :]
        return torch.cat((angles.sin(), angles.cos()), dim=-1)


class Denoiser(nn.Module):
    def __init__(self, channels=16):
        super().__init__()
        self.time = nn.Sequential(TimeEmbedding(32), nn.Linear(32, channels), nn.SiLU())
        self.first, self.last = nn.Conv2d(3, channels, 3, padding=1), nn.Conv2d(channels, 3, 3, padding=1)
        self.norm, self.middle = nn.GroupNorm(4, channels), nn.Conv2d(channels, channels, 3, padding=1)
        self.attention = nn.MultiheadAttention(channels, 4, batch_first=True)

    def forward(self, x, t):
        h = self.first(x) + self.time(t)[:, :, None, None]
        h = h + self.middle(F.silu(self.norm(h)))
        b, c, height, width = h.shape
        flat = h.flatten(2).transpose(1, 2)
        h = h + self.attention(flat, flat, flat, need_weights=False)[0].transpose(1, 2).reshape(b, c, height, width)
        return self.last(h)


class EMA:
    def __init__(self, beta):
        self.beta, self.step = beta, 0

    @torch.no_grad()
    def update(self, average, model):
        self.step += 1
        for old, new in zip(average.parameters(), model.parameters(), strict=True):
            old.data = old.data * self.beta + (1 - self.beta) * new.data


betas = torch.linspace(1e-4, 0.02, T).to(device)
alphas_cumprod = torch.cumprod(1.0 - betas, dim=0)
model = Denoiser().to(device)
ema_model, ema = copy.deepcopy(model).eval().requires_grad_(False), EMA(0.995)
optimizer = torch.optim.AdamW(model.parameters(), lr=2e-4)
loader = DataLoader(torch.rand(32, 3, 16, 16) * 2 - 1, batch_size=8, shuffle=True)


@torch.autocast("cuda" if torch.cuda.is_available() else "cpu", dtype=torch.bfloat16)
def loss_of(x_start):
    t = torch.randint(0, T, (x_start.shape[0],), device=device).long()
    noise = torch.randn_like(x_start)
    x_noisy = extract(alphas_cumprod.sqrt(), t, x_start.shape) * x_start
    x_noisy = x_noisy + extract((1 - alphas_cumprod).sqrt(), t, x_start.shape) * noise
    return F.mse_loss(model(x_noisy, t), noise)


for epoch in range(3):
    for x in loader:
        loss = loss_of(x.to(device))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        ema.update(ema_model, model)
    print(epoch, loss.detach().cpu().numpy())
with torch.no_grad():
    img = torch.randn((4, 3, 16, 16), device=device)
    for i in reversed(range(T)):
        t = torch.full((4,), i, device=device, dtype=torch.long)
        img = img - extract(betas, t, img.shape) * ema_model(img, t)
