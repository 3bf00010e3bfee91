"""Train the GPT of gpt.py with DDP: a script that distributes itself.

    python ddp_gpt.py                          one process
    echelon run -n 2 ddp_gpt.py                two ranks
    torchrun --nproc-per-node=2 ddp_gpt.py     two ranks

A plain PyTorch script that knows no launcher: it reads RANK, WORLD_SIZE and LOCAL_RANK, as all of them set, and uses
GPUs where there are any. The ranks share out every step's batch, so the loss is the same however many ranks there are
and whoever started them.
"""

import argparse
import math
import os
import time

import torch
import torch.distributed as dist
from gpt import GPT, Progress, add_options, draw_batch, learning_rate_factor, read_text, write_losses
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim.lr_scheduler import LambdaLR


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

    for step in range(1, options.steps + 1):
        rows = slice(dist.get_rank(), None, dist.get_world_size())
        inputs, following = (part[rows] for part in draw_batch(text, step, options.batch_size, options.context))
        loss = model(inputs.to(device), following.to(device))
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()

        mean = loss.detach() / dist.get_world_size()
        dist.all_reduce(mean)
        losses.append(mean.item())
        progress.draw(step, losses[-1])
        if step == 1 or step % options.every == 0:
            progress.clear()
            if first:
                print(f"step {step} loss {losses[-1]:.4f}", flush=True)
    progress.clear()
    return losses


def read_options() -> argparse.Namespace:
    """Return what the command line asks for."""
    parser = argparse.ArgumentParser(description="Train a small GPT on Python's standard library, with DDP.")
    add_options(parser)
    options = parser.parse_args()
    ranks = int(os.environ.get("WORLD_SIZE", "1"))
    if options.batch_size % ranks:
        fitting = math.ceil(options.batch_size / ranks) * ranks
        parser.error(f"{ranks} ranks cannot share {options.batch_size} rows: try --batch-size {fitting}")
    return options


def main() -> None:
    """Train, then let rank 0 write the losses."""
    options = read_options()
    torch.set_num_threads(1)  # the last digit of a sum depends on the number of threads
    device = join_ranks()
    losses = train(options, read_text(), device)
    if dist.get_rank() == 0:
        write_losses(losses, options.out / "loss.csv")
    time.sleep(0.1)  # torch 2.13's gloo thread must let go of its last work first: it needs the interpreter for that
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
