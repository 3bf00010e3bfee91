"""Learn to read digits that are drawn on the spot, as others learn MNIST, with DistributedDataParallel.

    echelon run -n 1 digits.py                    one process
    echelon run -n 2 digits.py                    two ranks on this machine
    salloc --nodes=2 echelon run -n 2 digits.py   two on each of two nodes

What several ranks need beside DDP is all here: a sampler that knows the epoch, a validation in which no picture counts
twice, and one rank that speaks and saves.
"""

import argparse
import os
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, Subset, TensorDataset

# the digits from 0 to 9, each as five rows of three dots, a row as the number that its dots make in binary
SHAPES = ("75557", "26227", "71747", "71717", "55711", "74717", "74757", "71111", "75757", "75717")
SIZE, DOT = 28, 4


def draw_digits(number: int, seed: int) -> TensorDataset:
    """Return pictures of digits, each at a place and of a brightness of its own, in noise."""
    choice = torch.Generator().manual_seed(seed)
    dots = torch.tensor([[[int(row) >> bit & 1 for bit in (2, 1, 0)] for row in shape] for shape in SHAPES])
    shapes = dots.repeat_interleave(DOT, 1).repeat_interleave(DOT, 2).float()
    height, width = shapes.shape[1:]
    kinds = torch.randint(10, (number,), generator=choice)
    pictures = 0.4 * torch.rand(number, 1, SIZE, SIZE, generator=choice)
    for picture, kind in zip(pictures, kinds, strict=True):
        top, left = (int(torch.randint(SIZE - length + 1, (), generator=choice)) for length in (height, width))
        picture[0, top : top + height, left : left + width] += shapes[kind] * (0.5 + torch.rand((), generator=choice))
    return TensorDataset(pictures, kinds)


def make_model() -> nn.Module:
    """Return a small convolutional network."""
    return nn.Sequential(
        nn.Conv2d(1, 16, 5, stride=2), nn.ReLU(), nn.Conv2d(16, 32, 5, stride=2), nn.ReLU(), nn.Flatten(),
        nn.Linear(32 * 4 * 4, 64), nn.ReLU(), nn.Linear(64, 10),
    )  # fmt: skip


def train(model: nn.Module, loader: DataLoader, optimizer: torch.optim.Optimizer, device: torch.device) -> Tensor:
    """Train one epoch and return its mean loss over all ranks."""
    total = torch.zeros((), device=device)
    for pictures, kinds in loader:
        loss = F.cross_entropy(model(pictures.to(device)), kinds.to(device))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        total += loss.detach()
    total /= len(loader) * dist.get_world_size()
    dist.all_reduce(total)
    return total


@torch.no_grad()
def count_right(model: nn.Module, dataset: TensorDataset, device: torch.device) -> int:
    """Return how many digits all ranks together read right.

    Each rank takes its share; a DistributedSampler would repeat pictures until the shares are equal, and count them.
    """
    mine = Subset(dataset, range(dist.get_rank(), len(dataset), dist.get_world_size()))
    right = torch.zeros((), dtype=torch.long, device=device)
    for pictures, kinds in DataLoader(mine, batch_size=256):
        right += (model(pictures.to(device)).argmax(dim=1) == kinds.to(device)).sum()
    dist.all_reduce(right)
    return int(right)


def read_options() -> argparse.Namespace:
    """Return what the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--pictures", type=int, default=4096, help="to learn from; a fourth as many to be tested with")
    parser.add_argument("--batch-size", type=int, default=64, help="pictures in a step, over all ranks")
    parser.add_argument("--out", type=Path, default=Path(os.environ.get("ECHELON_RUN_DIR", ".")))
    options = parser.parse_args()
    ranks = int(os.environ["WORLD_SIZE"])
    if options.batch_size % ranks:
        parser.error(f"{ranks} ranks cannot share {options.batch_size} pictures: take a multiple of {ranks}")
    return options


def main() -> None:
    options = read_options()
    torch.manual_seed(0)  # every rank starts from the same weights
    cuda = torch.cuda.is_available()  # also true on AMD
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if cuda else torch.device("cpu")
    if cuda:
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if cuda else "gloo")
    ranks = dist.get_world_size()

    learned, tested = draw_digits(options.pictures, seed=0), draw_digits(options.pictures // 4 + 1, seed=1)
    sampler = DistributedSampler(learned)
    loader = DataLoader(learned, batch_size=options.batch_size // ranks, sampler=sampler)
    model = make_model().to(device)
    wrapped = DistributedDataParallel(model, device_ids=[device] if cuda else None)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)

    for epoch in range(1, options.epochs + 1):
        sampler.set_epoch(epoch)  # without it every epoch has the same order
        loss = train(wrapped, loader, optimizer, device)
        right = count_right(model, tested, device)
        if dist.get_rank() == 0:
            print(f"epoch {epoch} loss {loss:.4f} read {right} of {len(tested)}", flush=True)
            torch.save(model.state_dict(), options.out / "digits.pt")  # of the model, not of its wrapper
    time.sleep(0.3)  # without a GPU: torch 2.13's gloo threads must let go of their last work first
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
