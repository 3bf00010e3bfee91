"""Stochastic weight averaging with torch.optim.swa_utils and a cosine schedule."""

import sys

import torch
from torch import nn
from torch.optim.swa_utils import SWALR, AveragedModel
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
x = torch.randn(240, 6)
y = (x[:, :3].sum(1) > x[:, 3:].sum(1)).long()
loader = DataLoader(TensorDataset(x, y), batch_size=24, shuffle=True)
model = nn.Sequential(nn.Linear(6, 24), nn.Tanh(), nn.Linear(24, 2))
swa_model = AveragedModel(model)
optimizer = torch.optim.SGD(model.parameters(), lr=0.2, momentum=0.9)
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=6)
swa_scheduler = SWALR(optimizer, swa_lr=0.05, anneal_epochs=2)
step = 0
for epoch in range(8):
    for batch, target in loader:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(batch), target)
        loss.backward()
        optimizer.step()
        print(f"step {step} loss {loss.item():.8f}")
        step += 1
    if epoch >= 4:
        swa_model.update_parameters(model)
        swa_scheduler.step()
    else:
        scheduler.step()
swa_model.eval()
with torch.no_grad():
    correct = sum((swa_model(batch).argmax(1) == target).sum().item() for batch, target in loader)
print(f"averaged accuracy {correct / len(x):.4f}")
torch.save(swa_model.module.state_dict(), sys.argv[-1] if len(sys.argv) > 1 else "model.pt")
