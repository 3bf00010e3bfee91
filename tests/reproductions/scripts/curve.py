"""2,000 numbers, each a sample of its own, in a tensor of one dim."""

import torch
from torch import nn


class Curve(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Parameter(torch.randn(())), nn.Parameter(torch.randn(()))

    def forward(self, x):
        return self.a + self.b * x


torch.manual_seed(0)
x = torch.linspace(-3, 3, 2000)
model = Curve()
optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
for step in range(30):
    loss = nn.functional.mse_loss(model(x), x.sin())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 10 == 9:
        print(step, f"{loss.item():.6f}")
