"""A collate function that leaves broken samples out and keeps the names of the others."""

import sys

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset
from torch.utils.data.dataloader import default_collate


class Images(Dataset):
    def __init__(self):
        self.x, self.y = torch.randn(240, 5), torch.randint(3, (240,))

    def __len__(self):
        return len(self.x)

    def __getitem__(self, index):
        if index % 7 == 3:
            return None  # a broken file
        return self.x[index], self.y[index], f"image{index}.png"


def collate(batch):
    return default_collate([sample for sample in batch if sample is not None])


torch.manual_seed(0)
loader = DataLoader(Images(), batch_size=24, shuffle=True, collate_fn=collate)
model = nn.Sequential(nn.Linear(5, 16), nn.ReLU(), nn.Linear(16, 3))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
step = 0
for _epoch in range(5):
    for x, y, names in loader:
        loss = nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"step {step} loss {loss.item():.8f} of {len(x)} {len(names)} last {names[-1]}")
        step += 1
torch.save(model.state_dict(), sys.argv[-1] if len(sys.argv) > 1 else "model.pt")
