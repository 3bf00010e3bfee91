"""A detector whose model returns only the samples that a mask keeps; the loss selects their labels outside of it."""

import sys

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
x = torch.randn(120, 5)
keep = torch.rand(120) < 0.7
y = (x.sum(-1) > 0).long()


class Detector(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.head = nn.Linear(5, 8), nn.Linear(8, 2)

    def forward(self, x, keep):
        return self.head(torch.relu(self.body(x))[keep])


model = Detector()
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
step = 0
for _epoch in range(17):
    for xb, kb, yb in DataLoader(TensorDataset(x, keep, y), batch_size=40, shuffle=True):
        scores = model(xb, kb)
        loss = F.cross_entropy(scores, yb[kb])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"step {step} loss {loss.item():.8f} rows {len(scores)}")
        step += 1
torch.save(model.state_dict(), sys.argv[-1] if len(sys.argv) > 1 else "model.pt")
