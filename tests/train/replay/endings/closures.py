"""L-BFGS, whose closure may be called several times for each batch."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(2)
x = torch.randn(128, 6)
y = x[:, :1] * x[:, 1:2] + x[:, 2:3].tanh()
model = nn.Sequential(nn.Linear(6, 12), nn.Tanh(), nn.Linear(12, 1)).double()
optimizer = torch.optim.LBFGS(model.parameters(), lr=0.2, max_iter=3, history_size=5)
loader = DataLoader(TensorDataset(x.double(), y.double()), batch_size=16, shuffle=True)
for epoch in range(4):
    for number, (a, b) in enumerate(loader):

        def closure(a=a, b=b):
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(model(a), b)
            loss.backward()
            return loss

        loss = optimizer.step(closure)
        print(f"step {epoch:2d} {number:3d} loss {loss.item():.9e}", flush=True)
    print(f"epoch {epoch:2d} is over", flush=True)
