"""A model that remembers a mean of its inputs, as normalizers of observations and codebooks do."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Centred(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.register_buffer("mean", torch.zeros(width))
        self.layer = nn.Linear(width, 2)

    def forward(self, x):
        y = self.layer(x - self.mean)
        self.mean += 0.1 * (x.mean(0) - self.mean)
        return y


torch.manual_seed(0)
x = torch.randn(64, 8)
loader = DataLoader(TensorDataset(x, (x.sum(1) > 0).long()), batch_size=16)
model = Centred(8)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for inputs, targets in loader:
    loss = nn.functional.cross_entropy(model(inputs), targets)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(loss.item())
