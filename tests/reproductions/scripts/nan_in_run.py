import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

dist.init_process_group("gloo")
torch.manual_seed(0)
x = torch.randn(512, 6)
x[301, 2] = 0.0
y = x.abs().sqrt().sum(1, keepdim=True)
y[301] = float("nan")
ds = TensorDataset(x, y)
sampler = DistributedSampler(ds, shuffle=False)
net = DDP(nn.Linear(6, 1))
opt = torch.optim.SGD(net.parameters(), 0.01)
for step, (a, b) in enumerate(DataLoader(ds, batch_size=8, sampler=sampler)):
    loss = nn.functional.mse_loss(net(a), b)
    opt.zero_grad()
    loss.backward()
    opt.step()
    if dist.get_rank() == 0 and step % 8 == 0:
        print(step, loss.item(), flush=True)
dist.destroy_process_group()
