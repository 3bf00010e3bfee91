"""A training as one writes it for one device; it prints its losses, and how long a step takes."""

import argparse
import statistics
import time

import torch
from torch import nn

parser = argparse.ArgumentParser()
parser.add_argument("--device", required=True)
parser.add_argument("--steps", type=int, default=30)
parser.add_argument("--width", type=int, default=256)
parser.add_argument("--dropout", type=float, default=0.0)
asked = parser.parse_args()

torch.manual_seed(0)
device = torch.device(asked.device)
model = nn.Sequential(
    nn.Linear(64, asked.width), nn.GELU(), nn.Dropout(asked.dropout), nn.Linear(asked.width, asked.width), nn.GELU(),
    nn.Linear(asked.width, 8),
).to(device)  # fmt: skip
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
data = torch.utils.data.TensorDataset(torch.randn(64 * asked.steps, 64), torch.randint(8, (64 * asked.steps,)))
seconds = []
for step, (x, y) in enumerate(torch.utils.data.DataLoader(data, batch_size=64, shuffle=True)):
    began = time.perf_counter()
    x, y = x.to(device), y.to(device)
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(x), y)
    loss.backward()
    optimizer.step()
    print(f"step {step} loss {loss.item():.9g}")
    seconds.append(time.perf_counter() - began)
total = sum(float(weight.double().sum()) for weight in model.state_dict().values())
print(f"weights {total.hex()}")
print(f"median {statistics.median(seconds[len(seconds) // 3 :]) * 1e3:.3f} ms")
