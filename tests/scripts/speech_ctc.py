"""Speech recognition with CTC: padded features, lengths, a batch-first LSTM and log-probabilities by time."""

import sys

import torch
from torch import nn
from torch.utils.data import DataLoader


class Speech(nn.Module):
    def __init__(self):
        super().__init__()
        self.rnn, self.out = nn.LSTM(5, 12, batch_first=True, bidirectional=True), nn.Linear(24, 6)

    def forward(self, x):
        return self.out(self.rnn(x)[0]).log_softmax(2)


def collate(samples):
    features, labels = zip(*samples)  # noqa: B905
    lengths = torch.tensor([len(one) for one in features])
    label_lengths = torch.tensor([len(one) for one in labels])
    pad = nn.utils.rnn.pad_sequence
    return pad(features, batch_first=True), pad(labels, batch_first=True), lengths, label_lengths


torch.manual_seed(0)
data = [(torch.randn(10 + i % 5, 5), torch.randint(1, 6, (3 + i % 3,))) for i in range(120)]
model, criterion = Speech(), nn.CTCLoss(blank=0)
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
step = 0
for _epoch in range(6):
    for x, y, lengths, label_lengths in DataLoader(data, batch_size=12, shuffle=True, collate_fn=collate):
        output = model(x).transpose(0, 1)
        loss = criterion(output, y, lengths, label_lengths)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"step {step} loss {loss.item():.8f}")
        step += 1
torch.save(model.state_dict(), sys.argv[-1] if len(sys.argv) > 1 else "model.pt")
