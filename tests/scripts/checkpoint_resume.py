"""Write a checkpoint each epoch, stop half-way, build everything anew and go on from the file."""

import os
import sys

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

CHECKPOINT = "checkpoint.pt"


def build():
    model = nn.Sequential(nn.Linear(8, 24), nn.Tanh(), nn.Linear(24, 3))
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=6)
    return model, optimizer, scheduler


def train(loader, until):
    model, optimizer, scheduler = build()
    first = 0
    if os.path.exists(CHECKPOINT):
        state = torch.load(CHECKPOINT, map_location="cpu")
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        scheduler.load_state_dict(state["scheduler"])
        torch.set_rng_state(state["rng"])
        first = state["epoch"] + 1
        print(f"resumed at epoch {first}")
    for epoch in range(first, until):
        for i, (x, y) in enumerate(loader):
            loss = nn.functional.cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            print(f"step {epoch * len(loader) + i} loss {loss.item():.8f}")
        scheduler.step()
        state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "scheduler": scheduler.state_dict()}
        torch.save({**state, "epoch": epoch, "rng": torch.get_rng_state()}, CHECKPOINT + ".tmp")
        os.replace(CHECKPOINT + ".tmp", CHECKPOINT)
    return model


torch.manual_seed(0)
x = torch.randn(200, 8)
loader = DataLoader(TensorDataset(x, x[:, :3].argmax(1)), batch_size=20, shuffle=True)
train(loader, 3)
model = train(loader, 6)
torch.save(model.state_dict(), sys.argv[-1] if len(sys.argv) > 1 else "model.pt")
