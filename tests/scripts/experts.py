"""Each sample goes to one expert: which parameters have a part in the loss depends on the samples."""

import sys

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Experts(nn.Module):
    def __init__(self, num=4):
        super().__init__()
        self.gate = nn.Linear(4, num)
        self.experts = nn.ModuleList(nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1)) for _ in range(num))

    def forward(self, x):
        weight, which = self.gate(x).softmax(dim=1).max(dim=1)
        out = x.new_zeros(len(x), 1)
        for i, expert in enumerate(self.experts):
            rows = (which == i).nonzero().squeeze(1)
            if len(rows):
                out = out.index_add(0, rows, expert(x[rows]) * weight[rows].unsqueeze(1))
        return out


torch.manual_seed(0)
x = torch.randn(192, 4)
y = x.abs().sum(1, keepdim=True)
model = Experts()
optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.8)
step = 0
for _ in range(5):
    for a, b in DataLoader(TensorDataset(x, y), batch_size=16, shuffle=True):
        loss = nn.functional.l1_loss(model(a), b)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"step {step} loss {loss.item():.8f}")
        step += 1
torch.save(model.state_dict(), sys.argv[-1] if len(sys.argv) > 1 else "model.pt")
