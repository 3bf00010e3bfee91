"""Each rank shuffles by a chance of its own, and takes every second sample of that order.

From https://github.com/TensorAuto/OpenTau/issues/501
"""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Subset, TensorDataset

dist.init_process_group("gloo")
torch.manual_seed(0)
x = torch.randn(64, 8)
data = TensorDataset(x, x[:, :1] * 2 + x[:, 1:2].sin())
rank, num_ranks = dist.get_rank(), dist.get_world_size()
order = torch.randperm(len(data), generator=torch.Generator().manual_seed(rank)).tolist()
loader = DataLoader(Subset(data, order[rank::num_ranks]), batch_size=16 // num_ranks)
model = DistributedDataParallel(nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1)))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
for inputs, targets in loader:
    loss = nn.functional.mse_loss(model(inputs), targets)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
