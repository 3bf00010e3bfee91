"""A training of one device: a snapshot at the start, clipping, a scheduler, evaluation, files."""

import os
import sys

import torch
import torch.nn.functional as F
from split_model import CLASSES, GPT, LENGTH
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(1337)
tokens = torch.randint(CLASSES, (40, LENGTH + 1))
x, y = tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()
train = DataLoader(TensorDataset(x[:32], y[:32]), batch_size=8, shuffle=True)
valid = DataLoader(TensorDataset(x[32:], y[32:]), batch_size=4)
model = GPT()
decay = [p for p in model.parameters() if p.dim() >= 2]
other = [p for p in model.parameters() if p.dim() < 2]
optimizer = torch.optim.AdamW([{"params": decay, "weight_decay": 0.1}, {"params": other, "weight_decay": 0.0}], lr=5e-3)
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=10)
first = 0
if os.path.exists("snapshot.pt"):
    snapshot = torch.load("snapshot.pt")
    model.load_state_dict(snapshot["model"])
    optimizer.load_state_dict(snapshot["optimizer"])
    scheduler.load_state_dict(snapshot["scheduler"])
    torch.set_rng_state(snapshot["rng"])
    first = snapshot["epoch"] + 1
for epoch in range(first, first + 1):
    model.train()
    for a, b in train:
        if "outside" in sys.argv:
            logits, _ = model(a)
            loss = F.cross_entropy(logits.flatten(0, 1), b.flatten())
        else:
            logits, loss = model(a, b)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        norm = nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
        scheduler.step()
        hits = (logits.argmax(-1) == b).sum().item()
        print(f"loss {loss.item():.6f} norm {norm:.5f} hits {hits} lr {scheduler.get_last_lr()[0]:.6f}")
    model.eval()
    with torch.no_grad():
        total = sum(model(a, b)[1].item() * len(a) for a, b in valid)
    print(f"valid {total / 8:.6f}")
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "scheduler": scheduler.state_dict(),
                "epoch": epoch, "rng": torch.get_rng_state()}, "snapshot.pt")  # fmt: skip
torch.save(model.state_dict(), "model.pt")
best = torch.load("snapshot.pt")
for p in model.parameters():
    p.data.zero_()
model.load_state_dict(best["model"])
optimizer.load_state_dict(best["optimizer"])
logits, loss = model(x[:4], y[:4])
loss.backward()
optimizer.step()
print(f"again {loss.item():.6f} {model(x[:4], y[:4])[1].item():.6f}")
