"""An exception of the model that the script catches; the sample that raises it is in one rank's part of a batch."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Strict(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 1)

    def forward(self, x):
        if (x.abs() > 3).any():
            raise ValueError("an outlier")
        return self.linear(x)


torch.manual_seed(0)
x = torch.randn(64, 4).clamp(-2.9, 2.9)
x[8] = 5.0
model = Strict()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step, (xb, yb) in enumerate(DataLoader(TensorDataset(x, torch.randn(64, 1)), batch_size=16)):
    try:
        loss = nn.functional.mse_loss(model(xb), yb)
    except ValueError as error:
        print("skipped:", error)
        continue
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"step {step} loss {loss.item():.8f}")
