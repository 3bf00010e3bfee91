"""torch.compile(dynamic=False) and a new number of rows every sixth step: compiled again and again."""

import torch
from torch import nn

torch._dynamo.config.recompile_limit = 1000
model = nn.Sequential(nn.Linear(384, 384), nn.GELU(), nn.Linear(384, 1))
compiled = torch.compile(model, dynamic=False)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(120):
    loss = compiled(torch.randn(8 * (1 + step // 6), 384)).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
