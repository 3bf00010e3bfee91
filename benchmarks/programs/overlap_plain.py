"""Train wide layers on one device, as people write it, much of it to be exchanged: `overlap_plain.py FOLDER`."""

import sys

import torch
from scale_models import Task, Window
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
layers = [layer for _ in range(5) for layer in (nn.Linear(1024, 1024), nn.ReLU())]  # 21 MB
rows = TensorDataset(torch.randn(2048, 1024), torch.randint(0, 10, (2048,)))
task = Task(nn.Sequential(*layers, nn.Linear(1024, 10)), rows, batch_size=256, num_warmup=48, num_timed=24)
model, window = task.model, Window(task)
loader = DataLoader(task.dataset, batch_size=task.batch_size, shuffle=True)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)
goes_on = True
while goes_on:
    for inputs, targets in loader:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(inputs), targets)
        loss.backward()
        optimizer.step()
        goes_on = window.step()
        if not goes_on:
            break
window.write(sys.argv[1])
