"""Weights that no module is called with: the classic example with torch.mm."""

import torch

torch.manual_seed(0)
x, y = torch.randn(64, 10), torch.randn(64, 2)
w1, w2 = torch.randn(10, 16, requires_grad=True), torch.randn(16, 2, requires_grad=True)
optimizer = torch.optim.SGD([w1, w2], lr=1e-4)
for step in range(50):
    loss = (x.mm(w1).clamp(min=0).mm(w2) - y).pow(2).sum()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"step {step} loss {loss.item():.8f}")
