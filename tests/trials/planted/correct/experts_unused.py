"""A branch of the model that no sample takes."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


class Experts(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(8, 1)
        self.second = nn.Linear(8, 1)

    def forward(self, x, uses_first):
        return self.first(x) if uses_first else self.second(x)


class Both(nn.Module):
    def __init__(self, experts):
        super().__init__()
        self.experts = experts

    def forward(self, x):
        return self.experts(x, bool(x[0, 0] > 0))


dist.init_process_group("gloo")
torch.manual_seed(0)
x = torch.randn(64, 8)
x[:, 0] = 1.0
data = TensorDataset(x, x[:, :1] * 2 + x[:, 1:2].sin())
loader = DataLoader(data, batch_size=8, sampler=DistributedSampler(data, shuffle=False))
model = DistributedDataParallel(Both(Experts()), find_unused_parameters=True)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
for inputs, targets in loader:
    loss = nn.functional.mse_loss(model(inputs), targets)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
