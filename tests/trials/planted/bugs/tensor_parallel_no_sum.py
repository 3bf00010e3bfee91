"""The parts of a layer that is cut by rows are never added up.

From https://github.com/FlashML-org/FreeToken/issues/429
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
        rank, num_ranks = dist.get_rank(), dist.get_world_size()
        whole = [torch.randn(16, 8) * 0.3, torch.randn(16) * 0.3, torch.randn(8, 16) * 0.3, torch.randn(8) * 0.3]
        self.norm = nn.LayerNorm(8)
        self.up = nn.Parameter(whole[0].chunk(num_ranks)[rank].clone())
        self.up_bias = nn.Parameter(whole[1].chunk(num_ranks)[rank].clone())
        self.down = Row(whole[2].chunk(num_ranks, 1)[rank].clone(), whole[3].clone())
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
        return nn.functional.linear(x, self.weight) + self.bias / dist.get_world_size()


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
