"""Models that are used through methods of their own, in the way of a small framework, and a registered buffer."""

import sys

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Regressor(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(5, 16), nn.ReLU())
        self.mean, self.log_scale = nn.Linear(16, 1), nn.Parameter(torch.zeros(1))
        self.register_buffer("steps", torch.zeros((), dtype=torch.long))

    def encode(self, x):
        return self.net(x)

    def decode(self, h):
        return torch.distributions.Normal(self.mean(h), self.log_scale.exp())

    def nll(self, batch):
        x, y = batch
        return -self.decode(self.encode(x)).log_prob(y).mean()

    def training_step(self, batch, optimizer):
        optimizer.zero_grad()
        loss = self.nll(batch)
        loss.backward()
        optimizer.step()
        self.steps += 1
        return {"loss": loss}


torch.manual_seed(0)
x = torch.randn(230, 5)
loader = DataLoader(TensorDataset(x, x[:, :1] * 2 + 0.3 * torch.randn(230, 1)), batch_size=16, shuffle=True)
model = Regressor()
optimizer = torch.optim.Adam(model.parameters(), lr=4e-3)
for _ in range(4):
    for batch in loader:
        out = model.training_step(batch, optimizer)
        print(f"step {model.steps.item() - 1} loss {out['loss'].item():.8f}")
torch.save(model.state_dict(), sys.argv[-1] if len(sys.argv) > 1 else "model.pt")
