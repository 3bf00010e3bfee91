"""A beginner's loop: gradients are never cleared, and the next step adds to them; a list of losses is averaged."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(9)
x = torch.randn(192, 8)
model = nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
for epoch in range(4):
    losses = []
    for (a,) in DataLoader(TensorDataset(x), batch_size=12, shuffle=True):
        loss = (model(a) - a.prod(1, keepdim=True)).pow(2).mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        print(f"step {epoch:2d} {len(losses):3d} loss {losses[-1]:.9e}", flush=True)
    print(f"epoch {epoch:2d} mean {sum(losses) / len(losses):.9e}", flush=True)
