"""Tag words of sentences that differ in length: the loss is the mean over words that are no padding."""

import random
import sys

import torch
from torch import nn
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader

PAD = -100


def collate(rows):
    words = pad_sequence([torch.tensor(r) for r in rows], batch_first=True, padding_value=0)
    tags = pad_sequence([torch.tensor([w % 3 for w in r]) for r in rows], batch_first=True, padding_value=PAD)
    return words, tags


class Tagger(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(30, 16, padding_idx=0)
        self.lstm = nn.LSTM(16, 16, batch_first=True)
        self.head = nn.Linear(16, 3)

    def forward(self, words):
        return self.head(self.lstm(self.embed(words))[0])


random.seed(0)
torch.manual_seed(0)
sentences = [[random.randrange(1, 30) for _ in range(random.randrange(2, 12))] for _ in range(180)]
loader = DataLoader(sentences, batch_size=18, shuffle=True, collate_fn=collate)
model = Tagger()
criterion = nn.CrossEntropyLoss(ignore_index=PAD)
optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
step = 0
for _epoch in range(5):
    for words, tags in loader:
        logits = model(words)
        loss = criterion(logits.view(-1, 3), tags.view(-1))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"step {step} loss {loss.item():.8f}")
        step += 1
torch.save(model.state_dict(), sys.argv[-1] if len(sys.argv) > 1 else "model.pt")
