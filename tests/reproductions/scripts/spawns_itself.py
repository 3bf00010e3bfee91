import os

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP


def setup(rank, world):
    os.environ["MASTER_ADDR"] = "localhost"
    os.environ["MASTER_PORT"] = "12355"
    dist.init_process_group("gloo", rank=rank, world_size=world)


def demo(rank, world):
    setup(rank, world)
    torch.manual_seed(0)
    net = DDP(nn.Linear(10, 5))
    opt = torch.optim.SGD(net.parameters(), 0.01)
    for i in range(20):
        opt.zero_grad()
        loss = nn.functional.mse_loss(net(torch.randn(20, 10)), torch.randn(20, 5))
        loss.backward()
        opt.step()
    if rank == 0:
        print("world", world, "loss", loss.item(), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    n = torch.cuda.device_count() or 2
    mp.spawn(demo, args=(n,), nprocs=n, join=True)
