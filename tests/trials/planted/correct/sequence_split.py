"""Each rank has a part of every sequence of one batch."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset

dist.init_process_group("gloo")
torch.manual_seed(0)
rank, num_ranks = dist.get_rank(), dist.get_world_size()
tokens = torch.randint(0, 11, (32, 6))
loader = DataLoader(TensorDataset(tokens, (tokens * 3 + 1) % 11), batch_size=8, shuffle=True)
model = DistributedDataParallel(nn.Sequential(nn.Embedding(11, 16), nn.Linear(16, 11)))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
for inputs, targets in loader:
    inputs, targets = inputs.chunk(num_ranks, 1)[rank], targets.chunk(num_ranks, 1)[rank]
    loss = nn.functional.cross_entropy(model(inputs).flatten(0, 1), targets.flatten())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
