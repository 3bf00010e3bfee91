"""The sum is divided by the tokens of all ranks, and gradients are averaged as well.

From https://github.com/verl-project/verl-SpeCo/issues/29
"""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

dist.init_process_group("gloo")
torch.manual_seed(0)
tokens = torch.randint(0, 11, (64, 6))
lengths = torch.randint(1, 7, (64, 1))
targets = torch.where(torch.arange(6) < lengths, (tokens * 3 + 1) % 11, -100)
data = TensorDataset(tokens, targets)
sampler = DistributedSampler(data)
loader = DataLoader(data, batch_size=8, sampler=sampler)
model = DistributedDataParallel(nn.Sequential(nn.Embedding(11, 16), nn.Linear(16, 11)))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
for epoch in range(2):
    sampler.set_epoch(epoch)
    for inputs, wanted in loader:
        logits = model(inputs).flatten(0, 1)
        count = (wanted != -100).sum()
        dist.all_reduce(count)
        loss = nn.functional.cross_entropy(logits, wanted.flatten(), reduction="sum") / count
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
