import copy
import sys

import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel
from torch.utils.data import DataLoader, TensorDataset


class EMA:
    def __init__(self, model, decay=0.9):
        self.module = copy.deepcopy(model).eval().requires_grad_(False)
        self.decay = decay

    @torch.no_grad()
    def update(self, model):
        for mine, theirs in zip(self.module.parameters(), model.parameters(), strict=True):
            mine.lerp_(theirs, 1 - self.decay)


torch.manual_seed(0)
x = torch.randn(200, 6)
y = x.cos().sum(1, keepdim=True)
train = DataLoader(TensorDataset(x[:160], y[:160]), batch_size=16, shuffle=True)
test = DataLoader(TensorDataset(x[160:], y[160:]), batch_size=16)
model = nn.Sequential(nn.Linear(6, 32), nn.ReLU(), nn.Linear(32, 1))
ema, swa = EMA(model), AveragedModel(model)
optimizer = torch.optim.RAdam(model.parameters(), lr=5e-3)
step = 0
for epoch in range(6):
    for a, b in train:
        loss = nn.functional.mse_loss(model(a), b)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        ema.update(model)
        print(f"step {step} loss {loss.item():.8f}")
        step += 1
    swa.update_parameters(model)
    with torch.no_grad():
        value = sum(nn.functional.mse_loss(ema.module(a), b).item() for a, b in test) / len(test)
    print(f"epoch {epoch} ema {value:.6f}")
torch.save({"model": model.state_dict(), "ema": ema.module.state_dict(), "swa": swa.module.state_dict()},
           sys.argv[-1] if len(sys.argv) > 1 else "model.pt")  # fmt: skip
