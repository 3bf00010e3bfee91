"""A Trainer of its own that calls model.forward(x), model.training_step(batch) and model.encode(x)."""

import sys

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class AutoEncoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.enc, self.dec = nn.Linear(6, 3), nn.Linear(3, 6)

    def encode(self, x):
        return torch.tanh(self.enc(x))

    def forward(self, x):
        return self.dec(self.encode(x))

    def training_step(self, batch):
        (x,) = batch
        return F.mse_loss(self.forward(x), x) + 0.1 * self.penalty(x)

    def penalty(self, x):
        return self.encode(x).abs().sum(1).mean()


torch.manual_seed(0)
loader = DataLoader(TensorDataset(torch.randn(240, 6)), batch_size=24, shuffle=True)
model, head = AutoEncoder(), nn.Linear(6, 1)
optimizer = torch.optim.Adam([*model.parameters(), *head.parameters()], lr=0.01)
step = 0
for _epoch in range(6):
    for batch in loader:
        loss = model.training_step(batch) if step % 2 else F.mse_loss(head.forward(batch[0]), batch[0][:, :1])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"step {step} loss {loss.item():.8f} code {model.encode(batch[0]).norm().item():.5f}")
        step += 1
torch.save(model.state_dict(), sys.argv[-1] if len(sys.argv) > 1 else "model.pt")
