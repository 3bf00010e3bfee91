"""Gradients that hooks clamp or mask weight by weight, accumulated over two batches, and a norm kept by a hook."""

import sys

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
x = torch.randn(240, 4)
loader = DataLoader(TensorDataset(x, 5 * x.sum(1, keepdim=True).sin()), batch_size=24, shuffle=True)
model = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 1))
mask = (torch.rand(16, 4) < 0.7).float()
model[0].weight.register_hook(lambda grad: grad * mask)
for p in model.parameters():
    p.register_hook(lambda grad: torch.clamp(grad, -0.05, 0.05))
norms = {}
model[2].weight.register_post_accumulate_grad_hook(lambda p: norms.update(last=p.grad.norm().item()))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
step = 0
for _epoch in range(6):
    for xb, yb in loader:
        loss = nn.functional.mse_loss(model(xb), yb)
        loss.backward()
        if step % 2:
            optimizer.step()
            optimizer.zero_grad()
        print(f"step {step} loss {loss.item():.8f} norm {norms['last']:.6f}")
        step += 1
torch.save(model.state_dict(), sys.argv[-1] if len(sys.argv) > 1 else "model.pt")
