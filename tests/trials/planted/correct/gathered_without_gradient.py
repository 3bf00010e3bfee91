"""They are gathered by a function that passes gradients."""

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.nn.functional import all_gather
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
    all_texts = [torch.zeros_like(texts) for _ in range(num_ranks)]
    all_images = all_gather(images)
    dist.all_gather(all_texts, texts)
    logits = torch.cat(all_texts) @ torch.cat(all_images).T
    mine = slice(rank * len(images), (rank + 1) * len(images))
    loss = nn.functional.cross_entropy(logits[mine], torch.arange(len(logits))[mine])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
