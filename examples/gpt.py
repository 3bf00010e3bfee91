"""Train a small GPT on the source code of Python's own standard library.

    python gpt.py                          one process
    echelon run -n 2 gpt.py                two ranks
    torchrun --nproc-per-node=2 gpt.py     two ranks

A plain PyTorch script that knows no launcher: it reads RANK, WORLD_SIZE and LOCAL_RANK, as all of them
set, and uses GPUs where there are any. Every step's batch is drawn from the step's number and then shared
out among the ranks, so the loss is the same however many ranks there are and whoever started them.
"""

import argparse
import math
import os
import sys
import sysconfig
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel
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

    def draw(self, step: int, loss: float, tokens_per_second: float) -> None:
        if not self.live:
            return
        bar = "━" * round(24 * step / self.steps)
        left = (time.perf_counter() - self.started) / step * (self.steps - step)
        line = f"{bar:╌<24} {step}/{self.steps}  loss {loss:.4f}  {tokens_per_second:,.0f} tokens/s"
        print(f"\r\033[K{line}  {left // 60:.0f}:{left % 60:02.0f} left", end="", file=sys.stderr, flush=True)

    def clear(self) -> None:
        if self.live:
            print("\r\033[K", end="", file=sys.stderr, flush=True)


def read_text() -> Tensor:
    """Return the modules of the standard library, in the order of their names, as one row of bytes."""
    sources = sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))
    return torch.frombuffer(bytearray(b"\n".join(path.read_bytes() for path in sources)), dtype=torch.uint8)


def draw_batch(text: Tensor, step: int, rows: int, context: int) -> tuple[Tensor, Tensor]:
    """Return this rank's share of the step's batch, which is the same batch for any number of ranks."""
    choice = torch.Generator().manual_seed(step)
    starts = torch.randint(len(text) - context, (rows,), generator=choice)
    starts = starts[dist.get_rank() :: dist.get_world_size()]
    windows = text[starts[:, None] + torch.arange(context + 1)].long()
    return windows[:, :-1], windows[:, 1:]


def join_ranks() -> torch.device:
    """Meet the other ranks and return the device of this one."""
    cuda = torch.cuda.is_available()  # also true on AMD
    backend = "nccl" if cuda else "gloo"
    if cuda:
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")) % torch.cuda.device_count())
    if "RANK" in os.environ:
        dist.init_process_group(backend)
    else:
        dist.init_process_group(backend, store=dist.HashStore(), rank=0, world_size=1)
    return torch.device("cuda" if cuda else "cpu")


def learning_rate_factor(done: float) -> float:
    """Rise over the first twentieth of the training, then fall along a cosine to a tenth."""
    if done < 0.05:
        return 0.1 + 18 * done
    return 0.55 + 0.45 * math.cos(math.pi * (done - 0.05) / 0.95)


def train(options: argparse.Namespace, text: Tensor, device: torch.device) -> list[float]:
    """Return the loss of every step, averaged over all ranks."""
    torch.manual_seed(0)  # every rank starts from the same weights
    model = GPT(options.layers, options.width, options.heads, options.context).to(device)
    model = DistributedDataParallel(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, betas=(0.9, 0.95))
    schedule = LambdaLR(optimizer, lambda done: learning_rate_factor(done / options.steps))
    first = dist.get_rank() == 0
    progress = Progress(options.steps, live=first and options.progress)
    losses: list[float] = []
    printed, printed_at = 0, time.perf_counter()

    for step in range(1, options.steps + 1):
        inputs, following = draw_batch(text, step, options.batch_size, options.context)
        loss = model(inputs.to(device), following.to(device))
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()

        mean = loss.detach() / dist.get_world_size()
        dist.all_reduce(mean)
        losses.append(mean.item())
        seconds = time.perf_counter() - printed_at
        speed = (step - printed) * options.batch_size * options.context / seconds
        progress.draw(step, losses[-1], speed)
        if step == 1 or step % options.every == 0:
            progress.clear()
            if first:
                print(f"step {step} loss {losses[-1]:.4f} tokens/s {speed:.0f}", flush=True)
            printed, printed_at = step, time.perf_counter()
    progress.clear()
    return losses


def write_losses(losses: list[float], path: Path) -> None:
    """Write one row a step."""
    rows = [f"{step},{loss:.6f}" for step, loss in enumerate(losses, start=1)]
    path.write_text("\n".join(["step,loss_nats_per_byte", *rows, ""]))


def report(losses: list[float], text: Tensor, options: argparse.Namespace) -> None:
    """Write the losses and, where matplotlib is installed, draw them."""
    options.out.mkdir(parents=True, exist_ok=True)
    table, picture = options.out / "loss.csv", options.out / "loss.png"
    write_losses(losses, table)
    shares = torch.bincount(text.int(), minlength=VOCABULARY) / len(text)
    caption = f"{len(text) / 1e6:.1f} MB of the standard library, {options.layers} layers, "
    caption += f"ranks: {dist.get_world_size()}, {options.batch_size * options.context:,} bytes a step"
    try:
        import curve  # the file beside this one

        curve.draw(losses, picture, caption=caption, byte_entropy=torch.special.entr(shares).sum().item())
    except ImportError as missing:
        print(f"losses: {table}; to draw them: pip install {missing.name}", file=sys.stderr)
    else:
        print(f"losses: {table}\ncurve:  {picture}", file=sys.stderr)


def read_options() -> argparse.Namespace:
    """Return what the command line asks for."""
    parser = argparse.ArgumentParser(description="Train a small GPT on Python's standard library.")
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--batch-size", type=int, default=32, help="rows in a step, over all ranks")
    parser.add_argument("--context", type=int, default=128, help="bytes in a row")
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--heads", type=int, default=4)
    parser.add_argument("--every", type=int, default=20, help="steps between two printed lines")
    parser.add_argument("--out", type=Path, default=os.environ.get("ECHELON_RUN_DIR", "."), help="a folder")
    parser.add_argument("--progress", action="store_true", default=sys.stderr.isatty(), help="a live line")
    options = parser.parse_args()
    ranks = int(os.environ.get("WORLD_SIZE", "1"))
    if options.batch_size % ranks:
        fitting = math.ceil(options.batch_size / ranks) * ranks
        parser.error(f"{ranks} ranks cannot share {options.batch_size} rows: try --batch-size {fitting}")
    return options


def main() -> None:
    """Train, then let rank 0 report."""
    options = read_options()
    torch.set_num_threads(1)  # the last digit of a sum depends on the number of threads
    device = join_ranks()
    text = read_text()
    losses = train(options, text, device)
    if dist.get_rank() == 0:
        report(losses, text, options)
    time.sleep(0.1)  # torch 2.13's gloo thread must let go of its last work first: it needs the interpreter for that
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
