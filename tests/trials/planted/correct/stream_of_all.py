"""Each rank reads every second sample."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, IterableDataset


class Stream(IterableDataset):
    def __init__(self, x, y):
        self.x, self.y = x, y

    def __iter__(self):
        for row in range(dist.get_rank(), len(self.x), dist.get_world_size()):
            yield self.x[row], self.y[row]


dist.init_process_group("gloo")
torch.manual_seed(0)
x = torch.randn(64, 8)
y = x[:, :1] * 2 + x[:, 1:2].sin()
loader = DataLoader(Stream(x, y), batch_size=16 // dist.get_world_size())
model = DistributedDataParallel(nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1)))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
for inputs, targets in loader:
    loss = nn.functional.mse_loss(model(inputs), targets)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
