import sys

import torch
from torch import nn
from torch.amp import GradScaler
from torch.utils.data import DataLoader, TensorDataset


def main():
    torch.manual_seed(0)
    x = torch.randn(250, 6)
    y = torch.stack([x.pow(2).sum(1), x.prod(1)], dim=1)
    model = nn.Sequential(nn.Linear(6, 32), nn.ReLU(), nn.Linear(32, 2))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    scaler = GradScaler("cpu", init_scale=2.0**10, growth_interval=20)
    step = 0
    for _ in range(5):
        for a, b in DataLoader(TensorDataset(x, y), batch_size=20, shuffle=True):
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(model(a), b)
            scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            norm = nn.utils.clip_grad_norm_(model.parameters(), max_norm=2.0)
            scaler.step(optimizer)
            scaler.update()
            print(f"step {step} loss {loss.item():.8f} norm {norm.item():.5f} scale {scaler.get_scale()}")
            step += 1
    torch.save({"model": model.state_dict(), "scaler": scaler.state_dict()},
               sys.argv[-1] if len(sys.argv) > 1 else "model.pt")  # fmt: skip


if __name__ == "__main__":
    main()
