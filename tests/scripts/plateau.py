import sys

import torch
from torch import nn
from torch.optim.lr_scheduler import ReduceLROnPlateau
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
x = torch.randn(150, 4)
y = (x[:, :1] > 0).float()
loader = DataLoader(TensorDataset(x, y), batch_size=25, shuffle=True)
net = nn.Sequential(nn.Linear(4, 8), nn.Sigmoid(), nn.Linear(8, 1))
optim = torch.optim.SGD(net.parameters(), lr=0.3)
scheduler = ReduceLROnPlateau(optim, mode="min", factor=0.5, patience=0, threshold=0.1)
bce = nn.BCEWithLogitsLoss()
step = 0
for epoch in range(10):
    total = 0.0
    for xb, yb in loader:
        loss = bce(net(xb), yb)
        optim.zero_grad()
        loss.backward()
        optim.step()
        total += loss.detach()
        print(f"step {step} loss {loss.item():.8f}")
        step += 1
    scheduler.step(total / len(loader))
    print(f"epoch {epoch} mean {total.item() / len(loader):.7f} lr {optim.param_groups[0]['lr']:.6f}")
torch.save(net.state_dict(), sys.argv[-1] if len(sys.argv) > 1 else "model.pt")
