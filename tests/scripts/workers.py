import sys

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Squares(Dataset):
    def __len__(self):
        return 202

    def __getitem__(self, i):
        x = torch.tensor([i / 202, (i % 7) / 7, (i % 13) / 13])
        return x, x.square().sum().unsqueeze(0)


def seed_worker(worker_id):
    torch.manual_seed(torch.initial_seed() % 2**32)


if __name__ == "__main__":
    torch.manual_seed(0)
    g = torch.Generator()
    g.manual_seed(0)
    loader = DataLoader(Squares(), batch_size=15, shuffle=True, num_workers=2, persistent_workers=True,
                        worker_init_fn=seed_worker, generator=g, prefetch_factor=3)  # fmt: skip
    model = nn.Sequential(nn.Linear(3, 16), nn.ReLU(), nn.Linear(16, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    step = 0
    for epoch in range(5):
        for i, (x, y) in enumerate(loader):
            loss = nn.functional.mse_loss(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            print(f"step {step} loss {loss.item():.8f}")
            step += 1
            if epoch == 2 and i == 7:
                break
    torch.save(model.state_dict(), sys.argv[-1] if len(sys.argv) > 1 else "model.pt")
