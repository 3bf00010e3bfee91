import sys

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

ACCUMULATION = 4

torch.manual_seed(0)
x = torch.randn(268, 8)
y = torch.sin(x).sum(1, keepdim=True)
model = nn.Sequential(nn.Linear(8, 32), nn.SiLU(), nn.Linear(32, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
loader = DataLoader(TensorDataset(x, y), batch_size=4, shuffle=True)  # 67 batches: the last step has 3

micro = 0
updates = 0
for _epoch in range(4):
    optimizer.zero_grad()
    for i, (a, b) in enumerate(loader):
        loss = nn.functional.mse_loss(model(a), b) / ACCUMULATION
        loss.backward()
        print(f"step {micro} loss {loss.item() * ACCUMULATION:.8f}")
        micro += 1
        if (i + 1) % ACCUMULATION == 0 or i + 1 == len(loader):
            optimizer.step()
            optimizer.zero_grad()
            updates += 1
print(f"{updates} updates")
torch.save(model.state_dict(), sys.argv[-1] if len(sys.argv) > 1 else "model.pt")
