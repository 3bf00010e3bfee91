"""Reverse short sequences with a GRU encoder and decoder, teacher forced every second step."""

import sys

import torch
import torch.nn as nn
from torch.utils.data import DataLoader, TensorDataset

VOCAB, LENGTH, HIDDEN = 12, 5, 24
OUT = sys.argv[-1] if len(sys.argv) > 1 else "model.pt"


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(VOCAB, HIDDEN)
        self.gru = nn.GRU(HIDDEN, HIDDEN, batch_first=True)

    def forward(self, x):
        return self.gru(self.embedding(x))[1]


class Decoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(VOCAB, HIDDEN)
        self.gru = nn.GRU(HIDDEN, HIDDEN, batch_first=True)
        self.out = nn.Linear(HIDDEN, VOCAB)

    def forward(self, token, hidden):
        output, hidden = self.gru(self.embedding(token), hidden)
        return self.out(output), hidden


def train_step(source, target, encoder, decoder, optimizers, criterion, teacher_forcing):
    for optimizer in optimizers:
        optimizer.zero_grad()
    hidden = encoder(source)
    token = torch.zeros(source.size(0), 1, dtype=torch.long)
    loss = 0
    for t in range(LENGTH):
        output, hidden = decoder(token, hidden)
        loss += criterion(output.squeeze(1), target[:, t])
        token = target[:, t : t + 1] if teacher_forcing else output.argmax(-1).detach()
    loss.backward()
    for optimizer in optimizers:
        optimizer.step()
    return loss.item() / LENGTH


if __name__ == "__main__":
    torch.manual_seed(0)
    source = torch.randint(1, VOCAB, (192, LENGTH))
    loader = DataLoader(TensorDataset(source, source.flip(1)), batch_size=24, shuffle=True)
    encoder, decoder = Encoder(), Decoder()
    optimizers = [torch.optim.Adam(m.parameters(), lr=3e-3) for m in (encoder, decoder)]
    step = 0
    for _epoch in range(7):
        for src, tgt in loader:
            value = train_step(src, tgt, encoder, decoder, optimizers, nn.CrossEntropyLoss(), step % 4 != 3)
            print(f"step {step} loss {value:.8f}")
            step += 1
    torch.save({"encoder": encoder.state_dict(), "decoder": decoder.state_dict()}, OUT)
