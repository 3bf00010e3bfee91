"""A model that returns a torch.distributions object, a latent that is drawn from it, and a divergence."""

import sys

import torch
from torch import nn
from torch.distributions import Independent, Normal, kl_divergence
from torch.utils.data import DataLoader, TensorDataset


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(8, 16), nn.Tanh())
        self.mu, self.log_sigma = nn.Linear(16, 3), nn.Linear(16, 3)

    def forward(self, x):
        h = self.body(x)
        return Independent(Normal(self.mu(h), self.log_sigma(h).exp()), 1)


torch.manual_seed(0)
encoder, decoder = Encoder(), nn.Sequential(nn.Linear(3, 16), nn.Tanh(), nn.Linear(16, 8))
optimizer = torch.optim.Adam([*encoder.parameters(), *decoder.parameters()], lr=0.01)
loader = DataLoader(TensorDataset(torch.randn(240, 8)), batch_size=24, shuffle=True)
step = 0
for _epoch in range(5):
    for (x,) in loader:
        q = encoder(x)
        z = q.rsample()
        mean = decoder(z)
        nll = -Normal(mean, 0.5).log_prob(x).sum(-1).mean()
        prior = Independent(Normal(torch.zeros_like(z), torch.ones_like(z)), 1)
        kl = kl_divergence(q, prior).mean()
        loss = nll + kl
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"step {step} loss {loss.item():.8f} kl {kl.item():.6f} entropy {q.entropy().mean().item():.6f}")
        step += 1
state = {"encoder": encoder.state_dict(), "decoder": decoder.state_dict()}
torch.save(state, sys.argv[-1] if len(sys.argv) > 1 else "model.pt")
