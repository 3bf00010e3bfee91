"""Queries, keys and values are one tensor, which is cut as if it were one matrix.

From https://github.com/predibase/lorax/issues/120
"""

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


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        rank, num_ranks = dist.get_rank(), dist.get_world_size()
        self.num_heads = 4 // num_ranks
        whole = torch.randn(24, 8) * 0.3
        self.qkv = nn.Parameter(whole.chunk(num_ranks)[rank].clone())
        self.out = nn.Parameter((torch.randn(8, 8) * 0.3).chunk(num_ranks, 1)[rank].clone())

    def forward(self, x):
        q, k, v = nn.functional.linear(Copy.apply(x), self.qkv).chunk(3, -1)
        q, k, v = (one.unflatten(-1, (self.num_heads, 2)).transpose(1, 2) for one in (q, k, v))
        seen = nn.functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
        return Sum.apply(nn.functional.linear(seen, self.out))


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(11, 8)
        self.attention = Attention()
        self.head = nn.Linear(8, 11)

    def forward(self, tokens):
        x = self.embedding(tokens)
        return self.head(x + self.attention(x))


dist.init_process_group("gloo")
torch.manual_seed(0)
tokens = torch.randint(0, 11, (32, 6))
loader = DataLoader(TensorDataset(tokens, tokens.roll(1, 1)), batch_size=8)
model = Net()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
for inputs, targets in loader:
    loss = nn.functional.cross_entropy(model(inputs).flatten(0, 1), targets.flatten())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
