"""Train on one device, as people write it: `scale_plain.py TASK FOLDER`."""

import sys

import torch
from scale_models import TASKS, Window
from torch import nn
from torch.utils.data import DataLoader

torch.manual_seed(0)
task = TASKS[sys.argv[1]]()
model, window = task.model, Window(task)
loader = DataLoader(task.dataset, batch_size=task.batch_size, shuffle=True, drop_last=True)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)

step, goes_on = 0, True
while goes_on:
    for inputs, targets in loader:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(inputs), targets)
        loss.backward()
        optimizer.step()
        if step % 20 == 0:
            print(f"step {step} loss {loss.item():.5f}")
        step += 1
        goes_on = window.step()
        if not goes_on:
            break
window.write(sys.argv[2])
