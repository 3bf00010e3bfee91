"""Stop when the epoch's mean loss is good enough; it is weighted with the size of each batch."""

import sys

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
x = torch.randn(230, 5)
y = x @ torch.randn(5, 1)
dataset = TensorDataset(x, y)
loader = DataLoader(dataset, batch_size=21, shuffle=True)
model = nn.Linear(5, 1)
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
step = 0
for epoch in range(40):
    total, count = 0.0, 0
    for inputs, targets in loader:
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(inputs), targets)
        loss.backward()
        optimizer.step()
        total += loss.item() * len(inputs)
        count += len(inputs)
        print(f"step {step} loss {loss.item():.8f}")
        step += 1
    print(f"epoch {epoch} mean {total / len(dataset):.6f} over {count}")
    if total / len(dataset) < 0.02:
        print("good enough")
        break
torch.save(model.state_dict(), sys.argv[-1] if len(sys.argv) > 1 else "model.pt")
