import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(1)
x = torch.randn(960, 12)
y = (x[:, :3].sum(1) > 0).long()
ds = TensorDataset(x, y)
sampler = DistributedSampler(ds)
loader = DataLoader(ds, batch_size=24, sampler=sampler)
model = DDP(nn.Sequential(nn.Linear(12, 24), nn.ReLU(), nn.Linear(24, 2)))
opt = torch.optim.Adam(model.parameters(), 5e-3)
crit = nn.CrossEntropyLoss()
for epoch in range(4):
    sampler.set_epoch(epoch)
    hits = 0
    for xb, yb in loader:
        out = model(xb)
        loss = crit(out, yb)
        opt.zero_grad()
        loss.backward()
        opt.step()
        hits += (out.argmax(1) == yb).sum()
    if rank == 0:
        print(f"epoch {epoch} acc {hits / len(ds):.3f}")
dist.destroy_process_group()
