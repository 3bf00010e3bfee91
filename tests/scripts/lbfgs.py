import sys

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
torch.set_default_dtype(torch.float64)
x = torch.randn(120, 4)
y = torch.sigmoid(x @ torch.randn(4, 1))
loader = DataLoader(TensorDataset(x, y), batch_size=60, shuffle=True)
model = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 1))
optimizer = torch.optim.LBFGS(model.parameters(), lr=0.1, max_iter=3, history_size=5)
step = 0
for _ in range(26):
    for a, b in loader:

        def closure(a=a, b=b):
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(model(a), b)
            loss.backward()
            return loss

        loss = optimizer.step(closure)
        print(f"step {step} loss {loss.item():.10f}")
        step += 1
torch.save(model.state_dict(), sys.argv[-1] if len(sys.argv) > 1 else "model.pt")
