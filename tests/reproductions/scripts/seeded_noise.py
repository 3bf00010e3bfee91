import random

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset
from torch.utils.data.distributed import DistributedSampler


def seed_everything(s):
    random.seed(s)
    np.random.seed(s)
    torch.manual_seed(s)


class Noisy(Dataset):
    def __init__(self):
        g = torch.Generator().manual_seed(0)
        self.x = torch.randn(256, 8, generator=g)

    def __len__(self):
        return 256

    def __getitem__(self, i):
        v = self.x[i] + 0.5 * torch.from_numpy(np.random.randn(8)).float()  # augmentation
        return v, self.x[i].sum().view(1)


dist.init_process_group("gloo")
seed_everything(42)
ds = Noisy()
sampler = DistributedSampler(ds)
loader = DataLoader(ds, batch_size=16, sampler=sampler, num_workers=2)
net = DDP(nn.Sequential(nn.Linear(8, 32), nn.Dropout(0.3), nn.ReLU(), nn.Linear(32, 1)))
opt = torch.optim.SGD(net.parameters(), 0.02)
for epoch in range(3):
    sampler.set_epoch(epoch)
    for a, b in loader:
        opt.zero_grad()
        loss = nn.functional.mse_loss(net(a), b)
        loss.backward()
        opt.step()
    if dist.get_rank() == 0:
        print(epoch, loss.item(), flush=True)
dist.destroy_process_group()
