"""An embedding that is the last layer too, and a buffer."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(11, 16)
        self.fc = nn.Linear(16, 16)
        self.head = nn.Linear(16, 11, bias=False)
        self.head.weight = self.embedding.weight
        self.register_buffer("mask", torch.ones(6, 6).tril())

    def forward(self, x):
        mixed = (self.mask / self.mask.sum(1, keepdim=True)) @ self.embedding(x)
        return self.head(torch.relu(self.fc(mixed)))


dist.init_process_group("gloo")
torch.manual_seed(0)
tokens = torch.randint(0, 11, (64, 6))
lengths = torch.randint(1, 7, (64, 1))
targets = torch.where(torch.arange(6) < lengths, (tokens * 3 + 1) % 11, -100)
data = TensorDataset(tokens, targets)
sampler = DistributedSampler(data)
loader = DataLoader(data, batch_size=8, sampler=sampler)
model = DistributedDataParallel(Tied())
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
for epoch in range(2):
    sampler.set_epoch(epoch)
    for inputs, wanted in loader:
        logits = model(inputs).flatten(0, 1)
        loss = nn.functional.cross_entropy(logits, wanted.clamp(min=0).flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
