"""A training for one device with a state of 60 MB and much to compute; it prints how long its later steps took."""

import sys
import time

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

num_steps, width, device = int(sys.argv[1]), 1280, sys.argv[3]
torch.manual_seed(0)
x = torch.randn(max(4096, int(sys.argv[2])), width)
loader = DataLoader(TensorDataset(x, x.flip(1)), batch_size=int(sys.argv[2]), shuffle=True)
layers = nn.Linear(width, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, width)
model = nn.Sequential(*layers).to(device)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
step, began = 0, 0.0
while step < num_steps:
    for inputs, targets in loader:
        loss = nn.functional.mse_loss(model(inputs.to(device)), targets.to(device))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        step += 1
        if step == 20:  # by then the pace of saves is found
            began = time.time()
        if step == num_steps:
            print(f"seconds {(time.time() - began) / (step - 20):.6f}, loss {loss.item():.4f}")
            break
