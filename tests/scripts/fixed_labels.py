"""Labels are made once for the batch size of the script, which a share of a batch does not have."""

import sys

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

batch_size = 24
torch.manual_seed(0)
discriminator = nn.Sequential(nn.Linear(2, 16), nn.LeakyReLU(0.2), nn.Linear(16, 1))
optimizer = torch.optim.Adam(discriminator.parameters(), lr=1e-3)
criterion = nn.BCEWithLogitsLoss()
ones, zeros = torch.ones(batch_size, 1), torch.zeros(batch_size, 1)
real, fake = torch.randn(240, 2) + 1, torch.randn(240, 2) - 1
loader = DataLoader(TensorDataset(real, fake), batch_size=batch_size, shuffle=True, drop_last=True)
step = 0
for _ in range(6):
    for a, b in loader:
        loss = criterion(discriminator(a), ones) + criterion(discriminator(b), zeros)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"step {step} loss {loss.item():.8f}")
        step += 1
torch.save(discriminator.state_dict(), sys.argv[-1] if len(sys.argv) > 1 else "model.pt")
