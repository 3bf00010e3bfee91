import sys
import time

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(3)
x = torch.randn(640, 8)
model = nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=float(sys.argv[2]))
step = 0
for epoch in range(3):
    for (a,) in DataLoader(TensorDataset(x), batch_size=int(sys.argv[1]), shuffle=True):
        optimizer.zero_grad()
        loss = (model(a) - a.prod(1, keepdim=True)).pow(2).mean()
        loss.backward()
        optimizer.step()
        step += 1
        time.sleep(0.05)
    print(
        "epoch",
        epoch,
        "step",
        step,
        "rows",
        len(a),
        f"{loss.item():.6f}",
        "lr",
        optimizer.param_groups[0]["lr"],
        flush=True,
    )
