"""Samples with random noise, drawn in the dataset by two workers."""

import sys

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Noisy(Dataset):
    def __init__(self, x, y, transform):
        self.x, self.y, self.transform = x, y, transform

    def __len__(self):
        return len(self.x)

    def __getitem__(self, i):
        return self.transform(self.x[i]), self.y[i]


def main():
    torch.manual_seed(0)
    x = torch.randn(192, 10)
    y = x[:, ::2].sum(1, keepdim=True)
    data = Noisy(x, y, lambda row: row + 0.1 * torch.randn_like(row))
    loader = DataLoader(data, batch_size=24, shuffle=True, num_workers=2)
    model = nn.Sequential(nn.Linear(10, 32), nn.ReLU(), nn.Linear(32, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    step = 0
    for _ in range(7):
        for a, b in loader:
            loss = nn.functional.mse_loss(model(a), b)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            print(f"step {step} loss {loss.item():.8f}")
            step += 1
    torch.save(model.state_dict(), sys.argv[-1] if len(sys.argv) > 1 else "model.pt")


if __name__ == "__main__":
    main()
