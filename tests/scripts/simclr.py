import sys

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset


class TwoViews(Dataset):
    def __init__(self):
        g = torch.Generator().manual_seed(0)
        centre = torch.randn(240, 8, generator=g)
        self.one = centre + 0.1 * torch.randn(240, 8, generator=g)
        self.two = centre + 0.1 * torch.randn(240, 8, generator=g)

    def __len__(self):
        return 240

    def __getitem__(self, i):
        return self.one[i], self.two[i]


def nt_xent(a, b, temperature=0.5):
    z = F.normalize(torch.cat([a, b]), dim=1)
    sim = z @ z.t() / temperature
    sim.fill_diagonal_(float("-inf"))
    n = len(a)
    target = torch.cat([torch.arange(n, 2 * n), torch.arange(n)])
    return F.cross_entropy(sim, target)


def main():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 8))
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)
    loader = DataLoader(TwoViews(), batch_size=24, shuffle=True, drop_last=True)
    step = 0
    for _ in range(6):
        for one, two in loader:
            loss = nt_xent(net(one), net(two))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            print(f"step {step} loss {loss.item():.8f}")
            step += 1
    torch.save(net.state_dict(), sys.argv[-1] if len(sys.argv) > 1 else "model.pt")


main()
