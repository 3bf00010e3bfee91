import math
import sys

import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset


class Stream(IterableDataset):
    """Yields samples one by one, as from a file that is too large to be read."""

    def __init__(self, n):
        self.n = n

    def __iter__(self):
        for i in range(self.n):
            x = torch.tensor([math.sin(0.1 * i), math.cos(0.37 * i), (i % 11) / 11])
            yield x, x.prod().view(1)


def main():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 16), nn.ELU(), nn.Linear(16, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    loader = DataLoader(Stream(230), batch_size=18)
    step = 0
    for _ in range(5):
        for x, y in loader:
            loss = nn.functional.l1_loss(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            print(f"step {step} loss {loss.item():.8f}")
            step += 1
    torch.save(model.state_dict(), sys.argv[-1] if len(sys.argv) > 1 else "model.pt")


if __name__ == "__main__":
    main()
