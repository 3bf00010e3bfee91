import sys

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
use_amp = torch.cuda.is_available()
scaler = torch.amp.GradScaler("cuda", enabled=use_amp)
x = torch.randn(240, 16)
y = (x @ torch.randn(16, 4)).argmax(1)
loader = DataLoader(TensorDataset(x, y), batch_size=24, shuffle=True, pin_memory=use_amp)
model = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 4))
optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
step = 0
for _ in range(6):
    for a, b in loader:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = nn.functional.cross_entropy(model(a), b)
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        print(f"step {step} loss {loss.item():.8f}")
        step += 1
torch.save(model.state_dict(), sys.argv[-1] if len(sys.argv) > 1 else "model.pt")
