"""A training that stands still after step 20 of its first attempt, once a state is in memory, until it is killed.

With the argument "dies" it kills itself after every fifth step of the first five attempts.
"""

import glob
import os
import signal
import sys
import time

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

attempt = int(os.environ["ECHELON_ATTEMPT"])
stands_still = attempt == 0 and len(sys.argv) == 1
dies_after = 5 * attempt + 5 if "dies" in sys.argv and attempt < 5 else 0
memory = os.environ.get("ECHELON_MEMORY_FOLDER", "")
torch.manual_seed(0)
x = torch.randn(320, 8)
loader = DataLoader(TensorDataset(x, x.sum(1, keepdim=True)), batch_size=32, shuffle=True)
model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Dropout(0.1), nn.Linear(16, 1))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
losses, step = [], 0
for _ in range(4):
    for inputs, targets in loader:
        loss = nn.functional.mse_loss(model(inputs), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        step += 1
        if step == dies_after:
            time.sleep(1)  # what was kept is published
            os.kill(os.getpid(), signal.SIGKILL)
        if stands_still and step == 20:
            while memory and not glob.glob(os.path.join(memory, "step-*")):
                time.sleep(0.05)
            print("stands still", flush=True)
            time.sleep(300)
with open("losses.txt", "w") as file:
    file.write("\n".join(f"{value:.6f}" for value in losses))
