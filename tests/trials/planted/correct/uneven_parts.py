"""Each rank's mean counts by its samples."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset

dist.init_process_group("gloo")
torch.manual_seed(0)
x = torch.randn(65, 8)
data = TensorDataset(x, x[:, :1] * 2 + x[:, 1:2].sin())
loader = DataLoader(data, batch_size=13)
rank, num_ranks = dist.get_rank(), dist.get_world_size()
model = DistributedDataParallel(nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1)))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
for inputs, targets in loader:
    whole = len(inputs)
    inputs, targets = inputs[rank::num_ranks], targets[rank::num_ranks]
    loss = nn.functional.mse_loss(model(inputs), targets)
    loss = loss * len(inputs) * num_ranks / whole
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
