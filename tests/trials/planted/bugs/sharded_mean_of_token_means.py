"""Under fully_shard too, each rank's loss is a mean over its own tokens.

From https://github.com/verl-project/verl/issues/5625
"""

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

dist.init_process_group("gloo")
torch.manual_seed(0)
tokens = torch.randint(0, 11, (64, 6))
lengths = torch.randint(1, 7, (64, 1))
targets = torch.where(torch.arange(6) < lengths, (tokens * 3 + 1) % 11, -100)
data = TensorDataset(tokens, targets)
sampler = DistributedSampler(data)
loader = DataLoader(data, batch_size=8, sampler=sampler)
model = nn.Sequential(nn.Embedding(11, 16), nn.Linear(16, 11))
fully_shard(model)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
for epoch in range(2):
    sampler.set_epoch(epoch)
    for inputs, wanted in loader:
        logits = model(inputs).flatten(0, 1)
        loss = nn.functional.cross_entropy(logits, wanted.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
