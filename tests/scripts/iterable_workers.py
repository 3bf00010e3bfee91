"""An IterableDataset that makes whole batches itself (batch_size=None), read by two workers."""

import sys

import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset, get_worker_info


class Batches(IterableDataset):
    def __init__(self, num_batches=60, size=12):
        self.num_batches, self.size = num_batches, size

    def __len__(self):
        return self.num_batches

    def __iter__(self):
        info = get_worker_info()
        first, stride = (info.id, info.num_workers) if info else (0, 1)
        for i in range(first, self.num_batches, stride):
            g = torch.Generator().manual_seed(i)
            x = torch.randn(self.size, 6, generator=g)
            yield {"input": x, "label": (x.sum(1) > 0).float(), "id": i}


if __name__ == "__main__":
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 12), nn.Tanh(), nn.Linear(12, 1))
    optimizer = torch.optim.RMSprop(model.parameters(), lr=1e-3, momentum=0.5)
    loader = DataLoader(Batches(), batch_size=None, num_workers=2)
    for step, batch in enumerate(loader):
        logits = model(batch["input"]).squeeze(1)
        loss = nn.functional.binary_cross_entropy_with_logits(logits, batch["label"])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"step {step} of {len(loader)} loss {loss.item():.8f} batch {batch['id']}")
    torch.save(model.state_dict(), sys.argv[-1] if len(sys.argv) > 1 else "model.pt")
