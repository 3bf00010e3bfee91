"""The leftover of an epoch is carried over into the next one, and the gradient norm is printed with each step."""

import sys

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def main():
    torch.manual_seed(10)
    x = torch.randn(216, 8)
    y = x.abs().sum(1, keepdim=True)
    model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.5)
    loader = DataLoader(TensorDataset(x, y), batch_size=12, shuffle=True)
    micro_step = 0
    for _ in range(9):
        for a, b in loader:
            loss = nn.functional.mse_loss(model(a), b)
            (loss / 3).backward()
            print(f"step {micro_step} loss {loss.item():.8f}")
            micro_step += 1
            if micro_step % 5 == 0:
                norm = sum(p.grad.norm() ** 2 for p in model.parameters()) ** 0.5
                print(f"gradient norm {norm:.6f}")
                optimizer.step()
                model.zero_grad()
    torch.save(model.state_dict(), sys.argv[-1] if len(sys.argv) > 1 else "model.pt")


main()
