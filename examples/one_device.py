"""Learn two spirals apart, on one device: a script that knows nothing of ranks.

python one_device.py                one device
echelon run -n 4 one_device.py      the same training on four
"""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
torch.manual_seed(0)
turns = torch.rand(2000, 1)
which = torch.randint(2, (2000, 1))
angles = 6 * turns + torch.pi * which
points = turns * torch.cat([angles.cos(), angles.sin()], 1) + 0.02 * torch.randn(2000, 2)
loader = DataLoader(TensorDataset(points, which.squeeze(1)), batch_size=64, shuffle=True)
model = nn.Sequential(nn.Linear(2, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 2)).to(device)
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)

for epoch in range(10):
    total, hits = 0.0, 0
    for inputs, targets in loader:
        inputs, targets = inputs.to(device), targets.to(device)
        outputs = model(inputs)
        loss = nn.functional.cross_entropy(outputs, targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        total += loss.item() * len(inputs)
        hits += (outputs.argmax(1) == targets).sum().item()
    if epoch % 3 == 0:
        print(f"epoch {epoch} loss {total / 2000:.4f} accuracy {hits / 2000:.3f}")
torch.save(model.state_dict(), "spirals.pt")
