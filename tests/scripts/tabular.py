"""Tabular data: an embedding for each categorical column, numbers beside them, and a learning rate of one cycle."""

import sys

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Table(Dataset):
    def __init__(self):
        generator = torch.Generator().manual_seed(3)
        self.categories = torch.stack([torch.randint(size, (300,), generator=generator) for size in (5, 9, 3)], dim=1)
        self.numbers = torch.randn(300, 4, generator=generator)
        self.targets = self.numbers[:, 0] + 0.3 * self.categories[:, 1] - self.categories[:, 2]

    def __len__(self):
        return len(self.targets)

    def __getitem__(self, index):
        return {"categories": self.categories[index], "numbers": self.numbers[index]}, self.targets[index]


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.embeddings = nn.ModuleList([nn.Embedding(size, 4) for size in (5, 9, 3)])
        self.layers = nn.Sequential(nn.Linear(16, 32), nn.LayerNorm(32), nn.ReLU(), nn.Linear(32, 1))

    def forward(self, categories, numbers):
        embedded = [embedding(categories[:, column]) for column, embedding in enumerate(self.embeddings)]
        return self.layers(torch.cat([*embedded, numbers], dim=1)).squeeze(1)


torch.manual_seed(0)
loader = DataLoader(Table(), batch_size=32, shuffle=True)
model = Net()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=3e-2, total_steps=6 * len(loader))
step = 0
for epoch in range(6):
    total = 0.0
    for features, target in loader:
        prediction = model(**features)
        loss = nn.functional.smooth_l1_loss(prediction, target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        total += loss.item() * len(target)
        print(f"step {step} loss {loss.item():.8f}")
        step += 1
    print(f"epoch {epoch} mean {total / len(loader.dataset):.6f} rate {schedule.get_last_lr()[0]:.6f}")
torch.save(model.state_dict(), sys.argv[-1] if len(sys.argv) > 1 else "model.pt")
