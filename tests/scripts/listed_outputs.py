"""Outputs of several heads and steps in lists, dicts and buffers that are assigned by index."""

import sys

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
x = torch.randn(240, 3, 4)
loader = DataLoader(TensorDataset(x, x.sum((1, 2))), batch_size=24, shuffle=True)
cell, heads = nn.GRUCell(4, 8), nn.ModuleList(nn.Linear(8, 1) for _ in range(2))
optimizer = torch.optim.Adam([*cell.parameters(), *heads.parameters()], lr=0.01)
step = 0
for _epoch in range(5):
    for xb, yb in loader:
        h = torch.zeros(len(xb), 8)
        outputs, states = [None] * 3, {}
        predictions = torch.zeros(3, xb.size(0))
        for t in range(3):
            h = cell(xb[:, t], h)
            states[t] = h
            outputs[t] = heads[t % 2](h)
            predictions[t] = outputs[t].squeeze(1)
        loss = sum(nn.functional.mse_loss(one.squeeze(-1), yb) for one in outputs) / 3
        loss = loss + 0.01 * states[1].pow(2).mean() + (predictions.mean(0) - yb).abs().mean()
        loss = loss + 0.1 * torch.stack(outputs).var(0).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"step {step} loss {loss.item():.8f}")
        step += 1
torch.save(cell.state_dict(), sys.argv[-1] if len(sys.argv) > 1 else "model.pt")
