"""Trains on one device, keeps a snapshot of each epoch, and goes on from the last one."""

import hashlib
import os
import sys
import time
from pathlib import Path

import torch

torch.manual_seed(3)
features = torch.randn(32, 8)
dataset = torch.utils.data.TensorDataset(features, features[:, :3].argmax(1))
model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Dropout(0.2), torch.nn.Linear(16, 3))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
first = 0
if os.path.exists("snapshot.pt"):
    snapshot = torch.load("snapshot.pt")
    model.load_state_dict(snapshot["model"])
    optimizer.load_state_dict(snapshot["optimizer"])
    torch.set_rng_state(snapshot["random"])
    first = snapshot["epoch"]
for epoch in range(first, 6):
    for inputs, targets in torch.utils.data.DataLoader(dataset, batch_size=16, shuffle=True):
        loss = torch.nn.functional.cross_entropy(model(inputs), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "random": torch.get_rng_state()}
    torch.save({**state, "epoch": epoch + 1}, "snapshot.pt")
    print("epoch", epoch, "loss", loss.item(), flush=True)
    if "wait" in sys.argv and first == 0 and epoch == 2:
        Path("waits").touch()
        time.sleep(120)
        sys.exit("nobody ended me")
digest = hashlib.sha256(b"".join(value.numpy().tobytes() for value in model.state_dict().values()))
print("weights", digest.hexdigest(), flush=True)
