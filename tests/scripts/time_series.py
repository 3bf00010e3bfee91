"""Forecast a series with an LSTM over windows, a validation loss each epoch, and the best weights kept in memory."""

import copy
import sys

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset, random_split


class Forecaster(nn.Module):
    def __init__(self, hidden=16):
        super().__init__()
        self.lstm = nn.LSTM(1, hidden, num_layers=2, batch_first=True)
        self.head = nn.Linear(hidden, 1)

    def forward(self, x):
        state = (torch.zeros(2, x.size(0), 16), torch.zeros(2, x.size(0), 16))
        out, _ = self.lstm(x, state)
        return self.head(out[:, -1, :])


torch.manual_seed(1)
series = torch.sin(torch.arange(260) / 6.0) + 0.05 * torch.randn(260)
windows = series.unfold(0, 13, 1)
dataset = TensorDataset(windows[:, :12].unsqueeze(-1), windows[:, 12:])
training, validation = random_split(dataset, [200, len(dataset) - 200], generator=torch.Generator().manual_seed(0))
loader, held_out = DataLoader(training, batch_size=20, shuffle=True), DataLoader(validation, batch_size=16)
model = Forecaster()
optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
best, best_weights = float("inf"), None
step = 0
for epoch in range(6):
    model.train()
    for x, y in loader:
        loss = nn.functional.mse_loss(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"step {step} loss {loss.item():.8f}")
        step += 1
    model.eval()
    with torch.no_grad():
        errors = [nn.functional.mse_loss(model(x), y).item() for x, y in held_out]
    mean = sum(errors) / len(errors)
    if mean < best:
        best, best_weights = mean, copy.deepcopy(model.state_dict())
    print(f"epoch {epoch} validation {mean:.6f} best {best:.6f}")
torch.save(best_weights, sys.argv[-1] if len(sys.argv) > 1 else "model.pt")
