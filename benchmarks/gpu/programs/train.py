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
parser.add_argument("--precision", choices=("float32", "bfloat16", "float16"), default="float32")
parser.add_argument("--compile", action="store_true")
parser.add_argument("--pin", action="store_true", help="workers, pinned memory, copies that do not wait, fused AdamW")
parser.add_argument("--blocks", type=int, default=0, help="a model of that many blocks of the same kind")
asked = parser.parse_args()


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(width), nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(nn.functional.gelu(self.up(self.norm(x))))


torch.manual_seed(0)
device = torch.device(asked.device)
model = nn.Sequential(
    nn.Linear(64, asked.width), nn.GELU(), nn.Dropout(asked.dropout), nn.Linear(asked.width, asked.width), nn.GELU(),
    nn.Linear(asked.width, 8),
).to(device)  # fmt: skip
if asked.blocks:
    blocks = nn.Sequential(*(Block(asked.width) for _ in range(asked.blocks)))
    model = nn.Sequential(nn.Linear(64, asked.width), blocks, nn.Linear(asked.width, 8)).to(device)
if asked.compile:
    model = torch.compile(model)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=asked.pin)
scaler = torch.amp.GradScaler(device.type, enabled=asked.precision == "float16")
autocast = torch.autocast(device.type, getattr(torch, asked.precision), enabled=asked.precision != "float32")
loading = {"num_workers": 2, "pin_memory": device.type == "cuda"} if asked.pin else {}
data = torch.utils.data.TensorDataset(torch.randn(64 * asked.steps, 64), torch.randint(8, (64 * asked.steps,)))
seconds = []
for step, (x, y) in enumerate(torch.utils.data.DataLoader(data, batch_size=64, shuffle=True, **loading)):
    began = time.perf_counter()
    x, y = x.to(device, non_blocking=asked.pin), y.to(device, non_blocking=asked.pin)
    optimizer.zero_grad()
    with autocast:
        loss = nn.functional.cross_entropy(model(x), y)
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    scaler.step(optimizer)
    scaler.update()
    print(f"step {step} loss {loss.item():.9g} at {time.time():.3f}")
    seconds.append(time.perf_counter() - began)
total = sum(float(weight.double().sum()) for weight in model.state_dict().values())
print(f"weights {total.hex()}")
print(f"median {statistics.median(seconds[len(seconds) // 3 :]) * 1e3:.3f} ms")
