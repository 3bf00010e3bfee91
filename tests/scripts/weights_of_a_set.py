"""Groups of weights that are made of sets: their order is another one in each process."""

import sys

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
x = torch.randn(240, 6)
loader = DataLoader(TensorDataset(x, x.sum(1)), batch_size=24, shuffle=True)
layers = [layer for _ in range(3) for layer in (nn.Linear(6, 6), nn.Tanh())]
model = nn.Sequential(*layers, nn.Linear(6, 1), nn.Flatten(0))
decayed = {one for name, one in model.named_parameters() if name.endswith("weight")}
groups = [
    {"params": list(decayed), "weight_decay": 0.1},
    {"params": list(set(model.parameters()) - decayed), "weight_decay": 0.0},
]
optimizer = torch.optim.AdamW(groups, lr=1e-2)
step = 0
for _epoch in range(6):
    for xb, yb in loader:
        loss = nn.functional.mse_loss(model(xb), yb)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"step {step} loss {loss.item():.8f}")
        step += 1
torch.save(model.state_dict(), sys.argv[-1] if len(sys.argv) > 1 else "model.pt")
