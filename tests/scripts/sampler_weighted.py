import sys

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset, WeightedRandomSampler

torch.manual_seed(0)
x = torch.randn(300, 5)
y = (x[:, 0] > 1.0).long()  # rare
counts = torch.bincount(y).float()
sampler = WeightedRandomSampler((1 / counts)[y], num_samples=240, replacement=True)
loader = DataLoader(TensorDataset(x, y), batch_size=23, sampler=sampler)
model = nn.Sequential(nn.Linear(5, 16), nn.ReLU(), nn.Linear(16, 2))
optimizer = torch.optim.Adamax(model.parameters(), lr=2e-3)
step = 0
for _ in range(5):
    for a, b in loader:
        optimizer.zero_grad()
        loss = nn.CrossEntropyLoss(label_smoothing=0.1)(model(a), b)
        loss.backward()
        optimizer.step()
        print(f"step {step} loss {loss.item():.8f}")
        step += 1
torch.save(model.state_dict(), sys.argv[-1] if len(sys.argv) > 1 else "model.pt")
