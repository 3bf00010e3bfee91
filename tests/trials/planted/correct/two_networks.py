"""Two models with an optimizer each, of which one learns through the other."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

dist.init_process_group("gloo")
torch.manual_seed(0)
x = torch.randn(64, 8)
data = TensorDataset(x, x[:, :1] * 2 + x[:, 1:2].sin())
sampler = DistributedSampler(data)
loader = DataLoader(data, batch_size=8, sampler=sampler)
maker = DistributedDataParallel(nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1)))
judge = DistributedDataParallel(nn.Linear(1, 1))
of_maker = torch.optim.AdamW(maker.parameters(), lr=1e-2)
of_judge = torch.optim.SGD(judge.parameters(), lr=1e-2)
for epoch in range(2):
    sampler.set_epoch(epoch)
    for inputs, targets in loader:
        made = maker(inputs)
        loss = nn.functional.softplus(judge(made.detach())).mean() + nn.functional.softplus(-judge(targets)).mean()
        of_judge.zero_grad()
        loss.backward()
        of_judge.step()
        loss = nn.functional.softplus(-judge.module(made)).mean() + nn.functional.mse_loss(made, targets)
        of_maker.zero_grad()
        loss.backward()
        of_maker.step()
