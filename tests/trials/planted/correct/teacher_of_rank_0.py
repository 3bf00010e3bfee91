"""Every rank updates it."""

import copy

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(8, 1)

    def forward(self, x):
        return self.fc(x)


dist.init_process_group("gloo")
torch.manual_seed(0)
x = torch.randn(64, 8)
data = TensorDataset(x, x[:, :1] * 2 + x[:, 1:2].sin())
sampler = DistributedSampler(data)
loader = DataLoader(data, batch_size=8, sampler=sampler)
student = Net()
teacher = copy.deepcopy(student).requires_grad_(False)
model = DistributedDataParallel(student)
optimizer = torch.optim.AdamW(model.parameters(), lr=5e-2)
for inputs, targets in loader:
    out = model(inputs)
    loss = nn.functional.mse_loss(out, targets) + nn.functional.mse_loss(out, teacher(inputs))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    for mean, new in zip(teacher.parameters(), student.parameters(), strict=True):
        mean.data.lerp_(new.data, 0.5)
