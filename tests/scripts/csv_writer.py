"""Losses go to a file through a writer with add_scalar(), and the bar is tqdm's where there is one."""

import csv
import logging
import sys
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

try:
    from torch.utils.tensorboard import SummaryWriter
except ImportError:

    class SummaryWriter:
        def __init__(self, log_dir="runs"):
            Path(log_dir).mkdir(parents=True, exist_ok=True)
            self.file = open(Path(log_dir) / "scalars.csv", "w", newline="")  # noqa: SIM115
            self.rows = csv.writer(self.file)

        def add_scalar(self, tag, value, step):
            self.rows.writerow([tag, step, f"{float(value):.6g}"])

        def close(self):
            self.file.close()


try:
    from tqdm import tqdm
except ImportError:

    def tqdm(iterable, **_):
        return iterable


logging.basicConfig(level=logging.INFO, format="%(message)s", handlers=[logging.FileHandler("train.log")])
log = logging.getLogger(__name__)

torch.manual_seed(0)
x = torch.randn(192, 7)
data = TensorDataset(x, x.pow(2).mean(1, keepdim=True))
model = nn.Sequential(nn.Linear(7, 16), nn.ReLU(), nn.Linear(16, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
writer = SummaryWriter("runs")
step = 0
for epoch in range(5):
    for a, b in tqdm(DataLoader(data, batch_size=16, shuffle=True), desc=f"epoch {epoch}", disable=None):
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(a), b)
        loss.backward()
        optimizer.step()
        writer.add_scalar("loss", loss, step)
        print(f"step {step} loss {loss.item():.8f}")
        step += 1
    log.info("epoch %d loss %.6f", epoch, loss.item())
writer.close()
torch.save(model.state_dict(), sys.argv[-1] if len(sys.argv) > 1 else "model.pt")
