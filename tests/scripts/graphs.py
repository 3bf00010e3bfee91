"""Classify graphs: a custom collate_fn joins graphs to one with an offset, and a vector says which is whose."""

import sys

import torch
from torch import nn
from torch.utils.data import DataLoader


def make_graph(g):
    n = int(torch.randint(4, 9, (1,), generator=g))
    x = torch.randn(n, 5, generator=g)
    edges = torch.randint(0, n, (2, 3 * n), generator=g)
    return {"x": x, "edges": edges, "y": int(x[:, 0].sum() > 0)}


class Batch:
    def __init__(self, graphs):
        offsets = torch.tensor([0] + [len(g["x"]) for g in graphs]).cumsum(0)
        self.x = torch.cat([g["x"] for g in graphs])
        self.edges = torch.cat([g["edges"] + o for g, o in zip(graphs, offsets[:-1], strict=True)], dim=1)
        self.index = torch.cat([torch.full((len(g["x"]),), i) for i, g in enumerate(graphs)])
        self.y = torch.tensor([g["y"] for g in graphs])
        self.num_graphs = len(graphs)


class Convolution(nn.Module):
    def __init__(self, cin, cout):
        super().__init__()
        self.own, self.others = nn.Linear(cin, cout), nn.Linear(cin, cout, bias=False)

    def forward(self, x, edges):
        message = torch.zeros(len(x), x.size(1)).index_add_(0, edges[1], x[edges[0]])
        return torch.relu(self.own(x) + 0.3 * self.others(message))


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1, self.conv2, self.head = Convolution(5, 16), Convolution(16, 16), nn.Linear(16, 2)

    def forward(self, batch):
        x = self.conv2(self.conv1(batch.x, batch.edges), batch.edges)
        pooled = torch.zeros(batch.num_graphs, 16).index_add_(0, batch.index, x)
        return self.head(pooled / 6)


generator = torch.Generator().manual_seed(0)
graphs = [make_graph(generator) for _ in range(170)]
torch.manual_seed(0)
loader = DataLoader(graphs, batch_size=16, shuffle=True, collate_fn=Batch)
model = Net()
optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
step = 0
for _epoch in range(5):
    for batch in loader:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(batch), batch.y)
        loss.backward()
        optimizer.step()
        print(f"step {step} loss {loss.item():.8f}")
        step += 1
torch.save(model.state_dict(), sys.argv[-1] if len(sys.argv) > 1 else "model.pt")
