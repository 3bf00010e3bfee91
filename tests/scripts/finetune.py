"""A frozen body, a new head; later the body is unfrozen and joins the optimizer with a smaller rate."""

import sys

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
body = nn.Sequential(nn.Linear(12, 32), nn.ReLU(), nn.Linear(32, 16), nn.ReLU())
head = nn.Linear(16, 3)
model = nn.Sequential(body, head)
for p in body.parameters():
    p.requires_grad = False
optimizer = torch.optim.SGD(filter(lambda p: p.requires_grad, model.parameters()), lr=0.1, momentum=0.9)
x = torch.randn(200, 12)
loader = DataLoader(TensorDataset(x, (x[:, :4].sum(1) > 0).long() + (x[:, 5] > 0)), batch_size=20, shuffle=True)
step = 0
for epoch in range(6):
    if epoch == 2:
        for p in body[2].parameters():
            p.requires_grad = True
        optimizer.add_param_group({"params": body[2].parameters(), "lr": 0.02})
    if epoch == 4:
        body.requires_grad_(True)
        optimizer.add_param_group({"params": body[0].parameters(), "lr": 0.005})
    for a, b in loader:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(a), b)
        loss.backward()
        optimizer.step()
        print(f"step {step} loss {loss.item():.8f}")
        step += 1
torch.save(model.state_dict(), sys.argv[-1] if len(sys.argv) > 1 else "model.pt")
