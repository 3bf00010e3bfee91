"""A small training by DistributedDataParallel for 2 ranks: the other slow_*.py plant a cause each into it."""

import os

import torch
import torch.distributed as dist
from torch import nn

WIDTH, DEPTH, ROWS, STEPS = 384, 4, 256, 200


def train(after=None, width=WIDTH, depth=DEPTH, rows=ROWS, closure=False, extra=None):
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    net = nn.Sequential(
        *[part for _ in range(depth) for part in (nn.Linear(width, width), nn.GELU())], nn.Linear(width, 1)
    )
    model = nn.parallel.DistributedDataParallel(net)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    data = torch.randn(rows, width)

    def forward_and_backward():
        if extra is not None:
            extra(net, data)
        optimizer.zero_grad()
        loss = model(data).pow(2).mean()
        loss.backward()
        return loss

    for step in range(STEPS):
        if closure:
            optimizer.step(forward_and_backward)
        else:
            forward_and_backward()
            optimizer.step()
        if after is not None:
            after(step)


def rank():
    return int(os.environ["RANK"])
