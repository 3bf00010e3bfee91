"""All parameters are in the optimizer from the beginning; which of them train changes in the middle of an epoch."""

import sys

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def set_trainable(module, flag):
    for p in module.parameters():
        p.requires_grad_(flag)


torch.manual_seed(0)
backbone, head = nn.Sequential(nn.Linear(6, 20), nn.Tanh()), nn.Linear(20, 1)
set_trainable(backbone, False)
optimizer = torch.optim.Adam([*backbone.parameters(), *head.parameters()], lr=3e-3)
x = torch.randn(300, 6)
y = x.sum(1, keepdim=True).sin()
step = 0
for _epoch in range(4):
    for a, b in DataLoader(TensorDataset(x, y), batch_size=20, shuffle=True):
        if step == 20:
            set_trainable(backbone, True)
        if step == 40:
            set_trainable(head, False)
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(head(backbone(a)), b)
        loss.backward()
        nn.utils.clip_grad_value_([*backbone.parameters(), *head.parameters()], 0.5)
        optimizer.step()
        print(f"step {step} loss {loss.item():.8f}")
        step += 1
torch.save({"backbone": backbone.state_dict(), "head": head.state_dict()},
           sys.argv[-1] if len(sys.argv) > 1 else "model.pt")  # fmt: skip
