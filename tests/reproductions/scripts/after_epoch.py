"""A function prints a number that the last step left in a local variable, and the process dies in between."""

import os
import signal
import time

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def fit(epochs: int) -> None:
    torch.manual_seed(4)
    x = torch.randn(96, 6)
    loader = DataLoader(TensorDataset(x, x.sum(1, keepdim=True)), batch_size=12, shuffle=True)
    model = nn.Linear(6, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for epoch in range(epochs):
        for a, b in loader:
            optimizer.zero_grad()
            nn.functional.mse_loss(model(a), b).backward()
            size = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            time.sleep(0.02)
        if epoch == 1 and os.environ.get("TORCHELASTIC_RESTART_COUNT") == "0":
            time.sleep(1.5)  # the checkpoint of step 16 is on the disk
            os.kill(os.getpid(), signal.SIGKILL)
        print(f"epoch {epoch} gradient {size:.5f}", flush=True)


fit(3)
