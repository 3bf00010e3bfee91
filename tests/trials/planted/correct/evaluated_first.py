"""A pass over the test data before any training, with gradients switched off inside of the loop."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

dist.init_process_group("gloo")
torch.manual_seed(0)
x = torch.randn(61, 8)
test = x[:21], (x[:21, :1] > 0).float()
data = TensorDataset(x[21:], (x[21:, :1] > 0).float())
sampler = DistributedSampler(data)
loader = DataLoader(data, batch_size=8, sampler=sampler)
tested = TensorDataset(*test)
test_loader = DataLoader(tested, batch_size=8, sampler=range(dist.get_rank(), 21, dist.get_world_size()))
model = DistributedDataParallel(nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1)))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
for epoch in range(2):
    sampler.set_epoch(epoch)
    model.eval()
    for inputs, _ in test_loader:
        with torch.no_grad():
            model(inputs)
    model.train()
    for inputs, targets in loader:
        loss = nn.functional.binary_cross_entropy_with_logits(model(inputs), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    model.eval()
    counts = torch.zeros(2)
    with torch.no_grad():
        for inputs, targets in test_loader:
            counts += torch.tensor([((model(inputs) > 0) == (targets > 0)).sum(), len(inputs)])
    dist.all_reduce(counts)
    if dist.get_rank() == 0:
        print(f"epoch {epoch}: accuracy {counts[0] / counts[1]:.4f}")
