"""The models that scale_plain.py and scale_ddp.py train, and the window in which both are timed."""

from __future__ import annotations

import itertools
import os
import statistics
import time
from dataclasses import dataclass

import torch
from torch import nn
from torch.utils.data import Dataset, TensorDataset


@dataclass(frozen=True)
class Task:
    """What is trained, and how long."""

    model: nn.Module
    dataset: Dataset
    batch_size: int
    """Of all ranks together."""
    num_warmup: int
    num_timed: int


def compute() -> Task:
    """Return convolutions: much work for each of few parameters."""
    layers: list[nn.Module] = [nn.Conv2d(3, 48, 3, padding=1), nn.ReLU()]
    for _ in range(3):
        layers += [nn.Conv2d(48, 48, 3, padding=1), nn.GroupNorm(4, 48), nn.ReLU()]
    model = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(48, 10))
    images = TensorDataset(torch.randn(512, 3, 32, 32), torch.randint(0, 10, (512,)))
    return Task(model, images, batch_size=32, num_warmup=10, num_timed=40)


def wide() -> Task:
    """Return wide layers, 21 MB of parameters, and a small batch: much to exchange, little to compute.

    The warm-up is long: in the first 39 steps echelon measures how large a bucket of gradients should be.
    """
    layers = [layer for _ in range(5) for layer in (nn.Linear(1024, 1024), nn.ReLU())]
    rows = TensorDataset(torch.randn(2048, 1024), torch.randint(0, 10, (2048,)))
    return Task(nn.Sequential(*layers, nn.Linear(1024, 10)), rows, batch_size=32, num_warmup=60, num_timed=150)


def short() -> Task:
    """Return a model whose step takes about 5 ms on one core: what is done around a step shows."""
    layers = [layer for _ in range(4) for layer in (nn.Linear(384, 384), nn.ReLU())]
    rows = TensorDataset(torch.randn(4096, 384), torch.randint(0, 10, (4096,)))
    return Task(nn.Sequential(*layers, nn.Linear(384, 10)), rows, batch_size=64, num_warmup=100, num_timed=800)


TASKS = {"compute": compute, "wide": wide, "short": short}


class Window:
    """Note when each step ended, and write down how long one took once enough have."""

    def __init__(self, task: Task) -> None:
        self._num_warmup, self._num_timed = task.num_warmup, task.num_timed
        self._times: list[float] = []

    def step(self) -> bool:
        """Note the end of a step; say whether there is another to come."""
        self._times.append(time.perf_counter())
        return len(self._times) <= self._num_warmup + self._num_timed

    def write(self, folder: str) -> None:
        """Leave the mean and the median of the steps after the warm-up, in milliseconds."""
        times = self._times[self._num_warmup :]
        mean = (times[-1] - times[0]) / (len(times) - 1) * 1e3
        median = statistics.median(after - before for before, after in itertools.pairwise(times)) * 1e3
        print(f"{1e3 / mean:.3f} steps/s", flush=True)
        with open(os.path.join(folder, "steps"), "w") as file:
            file.write(f"{mean!r} {median!r}")
