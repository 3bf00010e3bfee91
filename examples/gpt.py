"""Train a small GPT on the source code of Python's own standard library, on one device.

    python gpt.py                  one device
    echelon run -n 2 gpt.py        the same training on two

A script that knows nothing of ranks. Each step draws its batch by the step's number, so every run trains on the same
batches.
"""

import argparse
import math
import os
import sys
import sysconfig
import time
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim.lr_scheduler import LambdaLR

VOCABULARY = 256  # the model reads bytes


class Block(nn.Module):
    """Look back at earlier bytes, then think about what was seen."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm_before_attention = nn.LayerNorm(width)
        self.query_key_value = nn.Linear(width, 3 * width, bias=False)
        self.projection = nn.Linear(width, width, bias=False)
        self.norm_before_mlp = nn.LayerNorm(width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        split = self.query_key_value(self.norm_before_attention(x)).unflatten(-1, (3, self.heads, -1))
        query, key, value = split.permute(2, 0, 3, 1, 4)
        seen = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.projection(seen.transpose(1, 2).flatten(2))
        return x + self.mlp(self.norm_before_mlp(x))


class GPT(nn.Module):
    """Predict every next byte of a text."""

    def __init__(self, layers: int, width: int, heads: int, context: int) -> None:
        super().__init__()
        self.byte = nn.Embedding(VOCABULARY, width)
        self.position = nn.Parameter(torch.zeros(context, width))
        self.blocks = nn.Sequential(*(Block(width, heads) for _ in range(layers)))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, VOCABULARY, bias=False)
        nn.init.normal_(self.byte.weight, std=0.02)
        nn.init.normal_(self.head.weight, std=0.02)

    def forward(self, text: Tensor, following: Tensor) -> Tensor:
        x = self.byte(text) + self.position[: text.shape[1]]
        logits = self.head(self.norm(self.blocks(x)))
        return F.cross_entropy(logits.flatten(0, 1), following.flatten())


class Progress:
    """Draw one line again and again on the terminal, below whatever is printed."""

    def __init__(self, steps: int, live: bool) -> None:
        self.steps = steps
        self.live = live
        self.started = time.perf_counter()

    def draw(self, step: int, loss: float) -> None:
        if not self.live:
            return
        bar = "━" * round(24 * step / self.steps)
        minutes, seconds = divmod(round((time.perf_counter() - self.started) / step * (self.steps - step)), 60)
        line = f"{bar:╌<24} {step}/{self.steps}  loss {loss:.4f}"
        print(f"\r\033[K{line}  {minutes}:{seconds:02d} left", end="", file=sys.stderr, flush=True)

    def clear(self) -> None:
        if self.live:
            print("\r\033[K", end="", file=sys.stderr, flush=True)


def read_text() -> Tensor:
    """Return the modules of the standard library, in the order of their names, as one row of bytes."""
    sources = sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))
    return torch.frombuffer(bytearray(b"\n".join(path.read_bytes() for path in sources)), dtype=torch.uint8)


def draw_batch(text: Tensor, step: int, rows: int, context: int) -> tuple[Tensor, Tensor]:
    """Return the step's batch: rows of bytes, and the bytes that follow them."""
    choice = torch.Generator().manual_seed(step)
    starts = torch.randint(len(text) - context, (rows,), generator=choice)
    windows = text[starts[:, None] + torch.arange(context + 1)].long()
    return windows[:, :-1], windows[:, 1:]


def learning_rate_factor(done: float) -> float:
    """Rise over the first twentieth of the training, then fall along a cosine to a tenth."""
    if done < 0.05:
        return 0.1 + 18 * done
    return 0.55 + 0.45 * math.cos(math.pi * (done - 0.05) / 0.95)


def train(options: argparse.Namespace, text: Tensor, device: torch.device) -> list[float]:
    """Return the loss of every step."""
    torch.manual_seed(0)
    model = GPT(options.layers, options.width, options.heads, options.context).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, betas=(0.9, 0.95))
    schedule = LambdaLR(optimizer, lambda done: learning_rate_factor(done / options.steps))
    progress = Progress(options.steps, live=options.progress)
    losses: list[float] = []
    for step in range(1, options.steps + 1):
        inputs, following = draw_batch(text, step, options.batch_size, options.context)
        loss = model(inputs.to(device), following.to(device))
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        losses.append(loss.item())
        progress.draw(step, losses[-1])
        if step == 1 or step % options.every == 0:
            progress.clear()
            print(f"step {step} loss {losses[-1]:.4f}", flush=True)
    progress.clear()
    return losses


def write_losses(losses: list[float], path: Path) -> None:
    """Write one row a step."""
    path.parent.mkdir(parents=True, exist_ok=True)
    rows = [f"{step},{loss:.6f}" for step, loss in enumerate(losses, start=1)]
    path.write_text("\n".join(["step,loss_nats_per_byte", *rows, ""]))


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add what the model and its training are made of."""
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--batch-size", type=int, default=32, help="rows in a step")
    parser.add_argument("--context", type=int, default=128, help="bytes in a row")
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--heads", type=int, default=4)
    parser.add_argument("--every", type=int, default=20, help="steps between two printed lines")
    parser.add_argument("--out", type=Path, default=os.environ.get("ECHELON_RUN_DIR", "."), help="a folder")
    parser.add_argument("--progress", action="store_true", default=sys.stderr.isatty(), help="a live line")


def main() -> None:
    """Train, and write the losses."""
    parser = argparse.ArgumentParser(description="Train a small GPT on Python's standard library.")
    add_options(parser)
    options = parser.parse_args()
    torch.set_num_threads(1)  # the last digit of a sum depends on the number of threads
    losses = train(options, read_text(), torch.device("cuda" if torch.cuda.is_available() else "cpu"))
    write_losses(losses, options.out / "loss.csv")


if __name__ == "__main__":
    main()
