"""An LSTM whose samples stand in the second dim of its input, and batches that the script draws itself."""

import sys

import torch
from torch import nn

torch.manual_seed(0)
data = torch.randn(20, 64, 3)
model = nn.LSTM(3, 8)
head = nn.Linear(8, 1)
optimizer = torch.optim.Adam([*model.parameters(), *head.parameters()])
for step in range(50):
    x = data[:, torch.randint(64, (10,))]
    loss = nn.functional.mse_loss(head(model(x)[0][-1]), x.sum((0, 2))[:, None])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"step {step} loss {loss.item():.8f}")
torch.save(model.state_dict(), sys.argv[-1] if len(sys.argv) > 1 else "model.pt")
