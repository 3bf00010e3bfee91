"""Two backward passes for each step; killed at step 8 where an argument says so."""

import hashlib
import os
import signal
import sys
import time

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(7)
x = torch.randn(384, 16)
model = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 1))
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
is_killed = "killed" in sys.argv and os.environ.get("TORCHELASTIC_RESTART_COUNT") == "0"
step = 0
for number, (a,) in enumerate(DataLoader(TensorDataset(x), batch_size=12, shuffle=True)):
    loss = (model(a) - a.sin().sum(1, keepdim=True)).pow(2).mean() / 2
    loss.backward()
    if number % 2:
        optimizer.step()
        optimizer.zero_grad()
        step += 1
        if is_killed and step == 8:
            time.sleep(1.5)
            os.kill(os.getpid(), signal.SIGKILL)
digest = hashlib.sha256(b"".join(p.detach().numpy().tobytes() for p in model.parameters())).hexdigest()
print("step", step, f"{loss.item():.6f}", "bits", digest[:16])
