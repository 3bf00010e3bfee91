"""An output folder made anew, numpy arrays, JSON that is read back, and only the two last checkpoints kept."""

import json
import os
import shutil
import sys

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

OUT = "out"
if os.path.exists(OUT):
    shutil.rmtree(OUT)
os.makedirs(os.path.join(OUT, "checkpoints"))

np.random.seed(0)
torch.manual_seed(0)
x = np.random.randn(180, 5).astype("float32")
w = np.random.randn(5, 1).astype("float32")
train = DataLoader(TensorDataset(torch.tensor(x), torch.tensor(np.tanh(x @ w))), 18, shuffle=True)
model = nn.Sequential(nn.Linear(5, 20), nn.Tanh(), nn.Linear(20, 1))
optimizer = torch.optim.Adam(model.parameters(), 5e-3)
losses = []
for epoch in range(6):
    for a, b in train:
        optimizer.zero_grad()
        loss = (model(a) - b).abs().mean()
        loss.backward()
        optimizer.step()
        print(f"step {len(losses)} loss {loss.detach().numpy():.8f}")
        losses.append(float(loss.detach().cpu().numpy()))
    path = os.path.join(OUT, "checkpoints", f"{epoch:03d}.pt")
    torch.save({"epoch": epoch, "model": model.state_dict()}, path)
    for old in sorted(os.listdir(os.path.join(OUT, "checkpoints")))[:-2]:
        os.remove(os.path.join(OUT, "checkpoints", old))
    with open(os.path.join(OUT, "history.json"), "w") as f:
        json.dump({"losses": [round(v, 5) for v in losses]}, f)
    with open(os.path.join(OUT, "history.json")) as f:
        print(f"epoch {epoch}: {len(json.load(f)['losses'])} losses on disk")
np.save(os.path.join(OUT, "losses.npy"), np.array(losses))
np.savez(os.path.join(OUT, "all.npz"), losses=losses, weights=model[0].weight.detach().numpy())
torch.save(model.state_dict(), sys.argv[-1] if len(sys.argv) > 1 else "model.pt")
