import datetime
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP


def tokenize():
    end = time.time() + 25
    n = 0
    while time.time() < end:
        n += sum(range(1000))
    torch.save(torch.arange(100.0).view(-1, 4), "cache.pt")


dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=8))
if dist.get_rank() == 0:
    tokenize()
dist.barrier()
data = torch.load("cache.pt")
net = DDP(nn.Linear(4, 1))
opt = torch.optim.SGD(net.parameters(), 1e-6)
for i in range(5):
    opt.zero_grad()
    net(data).pow(2).mean().backward()
    opt.step()
dist.destroy_process_group()
