"""The text of a script that trains slowly, and prints a line for each step."""

TEXT = """
import time
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(1)
model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
step = 0
for epoch in range(EPOCHS):
    for (a,) in DataLoader(TensorDataset(torch.randn(320, 4)), batch_size=16):
        optimizer.zero_grad()
        loss = model(a).pow(2).mean()
        loss.backward()
        optimizer.step()
        step += 1
        time.sleep(PAUSE)
        print("line", step, f"{loss.item():.6f}", flush=True)
"""
STEPS_OF_AN_EPOCH = 20


def text(*, epochs: int, pause: float) -> str:
    """Return the script with a number of epochs, and a pause in each step in seconds."""
    return TEXT.replace("EPOCHS", str(epochs)).replace("PAUSE", str(pause))
