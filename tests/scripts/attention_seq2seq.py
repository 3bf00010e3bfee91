"""Reverse a sequence with an encoder, a decoder that attends, and teacher forcing, step by step inside of the model."""

import sys

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Seq2Seq(nn.Module):
    def __init__(self, vocabulary=12, width=24):
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.encoder = nn.GRU(width, width, batch_first=True)
        self.decoder = nn.GRUCell(2 * width, width)
        self.query = nn.Linear(width, width)
        self.out = nn.Linear(2 * width, vocabulary)

    def forward(self, source, target):
        states, hidden = self.encoder(self.embedding(source))
        hidden = hidden.squeeze(0)
        word = torch.zeros(source.size(0), dtype=torch.long)
        outputs = []
        for step in range(target.size(1)):
            scores = torch.bmm(states, self.query(hidden).unsqueeze(2)).squeeze(2)
            context = torch.bmm(scores.softmax(1).unsqueeze(1), states).squeeze(1)
            hidden = self.decoder(torch.cat([self.embedding(word), context], dim=1), hidden)
            outputs.append(self.out(torch.cat([hidden, context], dim=1)))
            word = target[:, step]
        return torch.stack(outputs, dim=1)


torch.manual_seed(0)
source = torch.randint(1, 12, (160, 6))
loader = DataLoader(TensorDataset(source, source.flip(1)), batch_size=16, shuffle=True)
model = Seq2Seq()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
criterion = nn.CrossEntropyLoss()
step = 0
for _ in range(6):
    for x, y in loader:
        output = model(x, y)
        loss = criterion(output.reshape(-1, output.size(-1)), y.reshape(-1))
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        print(f"step {step} loss {loss.item():.8f}")
        step += 1
torch.save(model.state_dict(), sys.argv[-1] if len(sys.argv) > 1 else "model.pt")
