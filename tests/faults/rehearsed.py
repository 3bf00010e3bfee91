"""A training for one device: dropout, a scheduler, and a best loss that Python keeps."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(3)
x = torch.randn(512, 12)
loader = DataLoader(TensorDataset(x, (x.sum(1) > 0).long()), batch_size=32, shuffle=True)
model = nn.Sequential(nn.Linear(12, 48), nn.LayerNorm(48), nn.ReLU(), nn.Dropout(0.2), nn.Linear(48, 2))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=40)
best = 9.0
for epoch in range(4):
    total = 0.0
    for inputs, targets in loader:
        loss = nn.functional.cross_entropy(model(inputs), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        scheduler.step()
        total += loss.item() * len(inputs)
    if total / len(x) < best:
        best = total / len(x)
        torch.save(model.state_dict(), f"best-{epoch}.pt")
    print(f"epoch {epoch} loss {total / len(x):.5f} best {best:.5f}")
