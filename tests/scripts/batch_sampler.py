"""Sequences of like length share a batch: a batch sampler with batches of many sizes, drawn with random.shuffle."""

import random
import sys

import torch
from torch import nn
from torch.utils.data import DataLoader, Sampler


class Buckets(Sampler):
    def __init__(self, lengths, tokens):
        self.lengths, self.tokens = lengths, tokens

    def _batches(self):
        order = sorted(range(len(self.lengths)), key=lambda i: self.lengths[i])
        batch, batches = [], []
        for i in order:
            if batch and (self.lengths[i] != self.lengths[batch[0]] or len(batch) * self.lengths[i] >= self.tokens):
                batches.append(batch)
                batch = []
            batch.append(i)
        return [*batches, batch]

    def __iter__(self):
        batches = self._batches()
        random.shuffle(batches)
        yield from batches

    def __len__(self):
        return len(self._batches())


random.seed(1)
torch.manual_seed(1)
lengths = [3 + i % 6 for i in range(240)]
rows = [(torch.randint(0, 15, (n,)), torch.tensor(n % 2)) for n in lengths]
loader = DataLoader(rows, batch_sampler=Buckets(lengths, 110))
embed, head = nn.EmbeddingBag(15, 12), nn.Linear(12, 2)
optimizer = torch.optim.SGD([{"params": embed.parameters(), "lr": 0.2}, {"params": head.parameters()}], lr=0.1)
step = 0
for _ in range(5):
    for tokens, label in loader:
        loss = nn.functional.cross_entropy(head(embed(tokens)), label)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"step {step} of {len(loader)} loss {loss.item():.8f}")
        step += 1
torch.save(nn.ModuleDict({"embed": embed, "head": head}).state_dict(),
           sys.argv[-1] if len(sys.argv) > 1 else "model.pt")  # fmt: skip
