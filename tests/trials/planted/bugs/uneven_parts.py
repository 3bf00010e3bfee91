"""A batch of 13 is divided into 7 and 6, and the two means count the same.

From https://github.com/huggingface/transformers/issues/608
"""

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
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
