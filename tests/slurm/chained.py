"""A training with a step that takes a while, whose losses are in losses.txt; it says how far it came."""

import os
import sys
import time

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

NUM_EPOCHS, STEP_SECONDS = int(sys.argv[1]), float(sys.argv[2])

torch.manual_seed(0)
x = torch.randn(128, 8)


class Slow(TensorDataset):
    """Samples that take a while; those of steps that are repeated are not loaded."""

    def __getitem__(self, index: int) -> tuple[torch.Tensor, ...]:
        time.sleep(STEP_SECONDS / 8)  # each of two ranks loads half of a batch
        return super().__getitem__(index)


loader = DataLoader(Slow(x, x.sum(1, keepdim=True)), batch_size=16, shuffle=True)
model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Dropout(0.1), nn.Linear(16, 1))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
losses = []
step = 0
for _ in range(NUM_EPOCHS):
    for inputs, targets in loader:
        loss = nn.functional.mse_loss(model(inputs), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        step += 1
        print("step", step, flush=True)
with open("losses.txt", "w") as file:
    file.write("\n".join(f"{value:.6f}" for value in losses))
with open("trackers.txt", "w") as file:
    names = ("WANDB_RUN_ID", "WANDB_RESUME", "NEPTUNE_CUSTOM_RUN_ID")
    file.write("\n".join(os.environ.get(name, "") for name in names))
