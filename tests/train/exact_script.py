"""A script for one device with everything that draws and rounds; it tells a digest of all that it has come to.

`exact_script.py EPOCHS [WORKERS]` goes on from checkpoint.pt where there is one.
"""

import hashlib
import os
import sys

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

torch.manual_seed(3)
last_epoch, num_workers = int(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 0


class Noisy(Dataset):
    """Samples with an augmentation."""

    def __init__(self):
        self.x, self.y = torch.randn(205, 12), torch.randint(0, 5, (205,))

    def __len__(self):
        return len(self.x)

    def __getitem__(self, index):
        return self.x[index] + 0.1 * torch.randn(12), self.y[index]


loader = DataLoader(Noisy(), batch_size=32, shuffle=True, num_workers=num_workers)  # the last batch is uneven
model = nn.Sequential(
    nn.Linear(12, 48),
    nn.GELU(),
    nn.Dropout(0.2),
    nn.Linear(48, 48),
    nn.LayerNorm(48),
    nn.Dropout(0.1),
    nn.Linear(48, 5),
)
unused = nn.Parameter(torch.ones(3))
optimizer = torch.optim.AdamW([*model.parameters(), unused], lr=1e-2)
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=60)
first_epoch = step = 0
if os.path.exists("checkpoint.pt"):
    saved = torch.load("checkpoint.pt", weights_only=False)
    model.load_state_dict(saved["model"])
    optimizer.load_state_dict(saved["optimizer"])
    scheduler.load_state_dict(saved["scheduler"])
    torch.set_rng_state(saved["random"])
    first_epoch, step = saved["epoch"], saved["step"]
for _ in range(first_epoch, last_epoch):
    for x, y in loader:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            logits = model(x)
        loss = nn.functional.cross_entropy(logits.float(), y) + 1e-4 * sum(p.square().sum() for p in model.parameters())
        (loss / 2).backward()
        step += 1
        if step % 2 == 0:
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
    hits = (logits.argmax(1) == y).sum().item()
    print(f"loss {loss.item().hex()} hits {hits}")
optimizer.zero_grad()
states = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "scheduler": scheduler.state_dict()}
torch.save({**states, "random": torch.get_rng_state(), "epoch": last_epoch, "step": step}, "checkpoint.pt")
digest = hashlib.sha256(torch.get_rng_state().numpy().tobytes())
for tensor in model.state_dict().values():
    digest.update(tensor.numpy().tobytes())
for state in optimizer.state_dict()["state"].values():
    for tensor in state.values():
        digest.update(tensor.numpy().tobytes())
print(digest.hexdigest())
