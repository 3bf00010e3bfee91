"""A vocabulary that is cut, and a cross entropy that knows of it."""

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Copy(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        gradient = gradient.clone()
        dist.all_reduce(gradient)
        return gradient


class Sum(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        x = x.clone()
        dist.all_reduce(x)
        return x

    @staticmethod
    def backward(ctx, gradient):
        return gradient


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        rank, num_ranks = dist.get_rank(), dist.get_world_size()
        self.embedding = nn.Embedding(12, 8)
        self.head = nn.Parameter((torch.randn(12, 8) * 0.3).chunk(num_ranks)[rank].clone())
        self.first = rank * len(self.head)

    def forward(self, tokens, targets):
        logits = nn.functional.linear(Copy.apply(self.embedding(tokens)), self.head)
        mine = (targets >= self.first) & (targets < self.first + len(self.head))
        picked = logits.gather(1, (targets - self.first).clamp(0, len(self.head) - 1)[:, None])[:, 0] * mine
        return (Sum.apply(logits.exp().sum(1)).log() - Sum.apply(picked)).mean()


dist.init_process_group("gloo")
torch.manual_seed(0)
tokens = torch.randint(0, 12, (64,))
loader = DataLoader(TensorDataset(tokens, (tokens * 5 + 1) % 12), batch_size=16)
model = Net()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
for inputs, targets in loader:
    loss = model(inputs, targets)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
