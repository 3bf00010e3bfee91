"""Truncated backpropagation: the hidden state of one batch is the beginning of the next."""

import sys

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

BATCH, LENGTH = 12, 8


class Lanes(Dataset):
    """Lane k of each batch goes on where lane k of the batch before ended."""

    def __init__(self, text):
        self.lanes = text[: len(text) // BATCH * BATCH].view(BATCH, -1)

    def __len__(self):
        return (self.lanes.size(1) - 1) // LENGTH * BATCH

    def __getitem__(self, i):
        chunk, lane = divmod(i, BATCH)
        piece = self.lanes[lane, chunk * LENGTH : (chunk + 1) * LENGTH + 1]
        return piece[:-1], piece[1:]


class CharRNN(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.rnn, self.head = nn.Embedding(9, 12), nn.LSTM(12, 20, batch_first=True), nn.Linear(20, 9)

    def forward(self, x, state):
        h, state = self.rnn(self.embed(x), state)
        return self.head(h), state


torch.manual_seed(0)
text = (torch.arange(1500) * 7 % 23 % 9).roll(3)
loader = DataLoader(Lanes(text), batch_size=BATCH, drop_last=True)
model = CharRNN()
optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
step = 0
for _epoch in range(4):
    state = None
    for x, y in loader:
        if state is not None:
            state = tuple(s.detach() for s in state)
        logits, state = model(x, state)
        loss = nn.functional.cross_entropy(logits.reshape(-1, 9), y.reshape(-1))
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.25)
        optimizer.step()
        print(f"step {step} loss {loss.item():.8f}")
        step += 1
torch.save(model.state_dict(), sys.argv[-1] if len(sys.argv) > 1 else "model.pt")
