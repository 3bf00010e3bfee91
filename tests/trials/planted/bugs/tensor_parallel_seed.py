"""Every rank draws its pieces from the same seed, so all pieces are the same.

From https://github.com/modelscope/ms-swift/issues/7944
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


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        num_ranks = dist.get_world_size()
        self.norm = nn.LayerNorm(8)
        self.up = nn.Parameter(torch.randn(16 // num_ranks, 8) * 0.3)
        self.up_bias = nn.Parameter(torch.zeros(16 // num_ranks))
        self.down = Row(torch.randn(8, 16 // num_ranks) * 0.3, torch.zeros(8))
        self.out = nn.Linear(8, 1)

    def forward(self, x):
        hidden = nn.functional.linear(Copy.apply(self.norm(x)), self.up, self.up_bias)
        return self.out(x + self.down(torch.relu(hidden)))


class Row(nn.Module):
    def __init__(self, weight, bias):
        super().__init__()
        self.weight = nn.Parameter(weight)
        self.bias = nn.Parameter(bias)

    def forward(self, x):
        return Sum.apply(nn.functional.linear(x, self.weight)) + self.bias


dist.init_process_group("gloo")
torch.manual_seed(0)
x = torch.randn(64, 8)
loader = DataLoader(TensorDataset(x, x[:, :1] * 2 + x[:, 1:2].sin()), batch_size=8)
model = Block()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
for inputs, targets in loader:
    loss = nn.functional.mse_loss(model(inputs), targets)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
