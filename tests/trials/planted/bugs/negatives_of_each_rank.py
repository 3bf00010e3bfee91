"""In-batch negatives are those of each rank's own samples.

From https://github.com/lightonai/pylate/issues/100
"""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

dist.init_process_group("gloo")
torch.manual_seed(0)
x = torch.randn(64, 8)
data = TensorDataset(x, x @ torch.randn(8, 6))
sampler = DistributedSampler(data)
loader = DataLoader(data, batch_size=8, sampler=sampler)
model = DistributedDataParallel(nn.Linear(8, 6))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
rank, num_ranks = dist.get_rank(), dist.get_world_size()
for inputs, texts in loader:
    images = nn.functional.normalize(model(inputs), dim=1)
    logits = texts @ images.T
    loss = nn.functional.cross_entropy(logits, torch.arange(len(logits)))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
