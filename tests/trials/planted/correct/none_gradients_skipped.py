"""A gradient that is missing is taken for zero."""

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


class Experts(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(8, 1)
        self.second = nn.Linear(8, 1)

    def forward(self, x, uses_first):
        return self.first(x) if uses_first else self.second(x)


dist.init_process_group("gloo")
torch.manual_seed(0)
x = torch.randn(64, 8)
x[:, 0] = torch.tensor([1.0, -1.0]).repeat(32)
data = TensorDataset(x, x[:, :1] * 2 + x[:, 1:2].sin())
loader = DataLoader(data, batch_size=8, sampler=DistributedSampler(data, shuffle=False))
model = Experts()
optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
for inputs, targets in loader:
    loss = torch.zeros(())
    for uses_first in (True, False):
        mine = (inputs[:, 0] > 0) == uses_first
        if mine.any():
            loss = loss + nn.functional.mse_loss(model(inputs[mine], uses_first), targets[mine], reduction="sum")
    optimizer.zero_grad()
    (loss / len(inputs)).backward()
    for parameter in model.parameters():
        if parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)
        dist.all_reduce(parameter.grad)
        parameter.grad /= dist.get_world_size()
    optimizer.step()
