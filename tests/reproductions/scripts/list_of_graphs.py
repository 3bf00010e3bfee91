"""A batch is a list of objects of different sizes; the model pools each graph with a sparse matrix of its own."""

import random

import torch
from torch import nn

random.seed(0)
torch.manual_seed(0)


class Graph:
    def __init__(self):
        self.size = random.randint(4, 9)
        self.x = torch.randn(self.size, 3)
        self.label = random.randint(0, 1)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.head = nn.Sequential(nn.Linear(3, 8), nn.ReLU()), nn.Linear(8, 2)

    def forward(self, graphs):
        x = torch.cat([g.x for g in graphs])
        ends = torch.tensor([g.size for g in graphs]).cumsum(0).tolist()
        starts = [0, *ends[:-1]]
        rows = torch.tensor([i for i, (a, b) in enumerate(zip(starts, ends)) for _ in range(a, b)])
        pool = torch.sparse_coo_tensor(
            torch.stack([rows, torch.arange(len(rows))]), torch.ones(len(rows)), (len(graphs), len(rows))
        )
        return self.head(torch.sparse.mm(pool, self.body(x)))


graphs = [Graph() for _ in range(48)]
net = Net()
opt = torch.optim.Adam(net.parameters(), lr=0.01)
for step in range(6):
    part = [graphs[i] for i in torch.randperm(48)[:12].tolist()]
    loss = nn.functional.cross_entropy(net(part), torch.tensor([g.label for g in part]))
    opt.zero_grad()
    loss.backward()
    opt.step()
    print(step, f"{loss.item():.6f}")
