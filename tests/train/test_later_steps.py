"""Trainings whose later steps differ from those of one device, and trainings whose later steps do not."""

import re
import subprocess
from pathlib import Path

import pytest
from tests import warm
from tests.tiers import some

FAULTY = """
import random
import sys

import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset, Sampler, TensorDataset

fault = sys.argv[1]
chance = random.SystemRandom()  # nothing can seed it
torch.manual_seed(0)
x, y = torch.randn(64, 6), torch.randint(3, (64,))


class Mixed(torch.autograd.Function):
    @staticmethod
    def forward(ctx, h):
        return h.clone()

    @staticmethod
    def backward(ctx, gradient):
        return gradient - gradient.mean(0)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.last, self.num_calls = nn.Linear(6, 16), nn.Linear(16, 3), 0  # the tenth and a next are tried

    def forward(self, x):
        self.num_calls += 1
        h = self.first(x).tanh()
        if fault == "forward" and self.num_calls > 11:
            h = h - h.mean(0)
        if fault == "backward" and self.num_calls > 11:
            h = Mixed.apply(h)
        return self.last(h)


class Order(Sampler):
    num_epochs = 0

    def __len__(self):
        return 64

    def __iter__(self):
        Order.num_epochs += 1
        order = list(range(64))
        if Order.num_epochs > 4:
            chance.shuffle(order)
        return iter(order)


class Stream(IterableDataset):
    def __iter__(self):
        return ((x[place], y[place]) for place in Order())


def batches():
    for epoch in range(50):
        if fault == "stream":
            yield from DataLoader(Stream(), batch_size=16)
        elif fault == "samples":
            yield from DataLoader(TensorDataset(x, y), batch_size=16, sampler=Order())
        else:
            for _ in range(4):
                size = chance.choice((12, 16, 20, 24, 28)) if fault == "sizes" and epoch > 3 else 16
                rows = torch.randperm(64)[:size]
                yield x[rows] + (chance.random() if fault == "values" and epoch > 3 else 0), y[rows]


model = Net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step, (a, b) in enumerate(batches(), 1):
    output = model(a)
    loss = nn.functional.cross_entropy(output, b)
    optimizer.zero_grad()
    loss.backward()
    if fault == "rates" and step > 12:
        optimizer.param_groups[0]["lr"] = chance.random()
    optimizer.step()
    if fault == "weights" and step == 12:
        model.last.weight.data += chance.random()
print("all", step, "steps")
"""

SOUND = """
import sys

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.checkpoint import checkpoint

torch.manual_seed(0)
data = TensorDataset(torch.randn(106, 5, 6), torch.randint(3, (106,)))
loader = DataLoader(data, batch_size=16, shuffle=True)
seen, norms = [], []


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.rows, self.norm, self.last = nn.LSTM(6, 16, batch_first=True), nn.BatchNorm1d(16), nn.Linear(16, 3)
        self.middle = nn.Sequential(nn.Linear(16, 16), nn.ReLU(), nn.Dropout(0.0))
        self.scaled = nn.utils.spectral_norm(nn.Linear(16, 16))
        self.history = []

    def forward(self, x):
        self.history.append(len(self.history))
        h = self.norm(self.rows(x)[0][:, -1])
        h = checkpoint(self.middle, h, use_reentrant=False)
        return self.last(self.scaled(h))


model = Net()
model.middle.register_forward_hook(lambda *_: seen.append(1))
model.last.weight.register_hook(lambda gradient: norms.append(1))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
for epoch in range(8):
    for place, (x, y) in enumerate(loader):
        loss = nn.functional.cross_entropy(model(x), y) / 2
        loss.backward()
        if place % 2:
            optimizer.step()
            optimizer.zero_grad()
            model.middle[2].p = 0.2  # the first step is compared without dropout
    model.eval()
    with torch.no_grad():
        hits = sum((model(x).argmax(1) == y).sum().item() for x, y in loader)
    model.train()
    print(epoch, f"{loss.item():.9f}", hits, len(seen), len(norms), len(model.history))
print(f"{model.norm.running_mean.sum():.9f}", model.norm.num_batches_tracked.item())
"""

GAN = """
import torch
from torch import nn

torch.manual_seed(0)
real = torch.randn(60, 4) * 2 + 1
maker = nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 4))
judge = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))
of_maker = torch.optim.Adam(maker.parameters(), lr=1e-3)
of_judge = torch.optim.Adam(judge.parameters(), lr=1e-3)
criterion = nn.BCEWithLogitsLoss()
for step in range(14):
    batch = real[torch.randperm(60)[:17]]
    noise = torch.randn(17, 3)
    of_judge.zero_grad()
    made = maker(noise)
    loss = criterion(judge(batch), torch.ones(17, 1)) + criterion(judge(made.detach()), torch.zeros(17, 1))
    loss.backward()
    of_judge.step()
    of_maker.zero_grad()
    fooled = criterion(judge(maker(noise)), torch.ones(17, 1))
    fooled.backward()
    of_maker.step()
    print(step, f"{loss.item():.9f} {fooled.item():.9f}")
"""


def line_of(text: str) -> str:
    """Return where a line of the script is, as a refusal names it."""
    return f"train.py:{FAULTY.splitlines().index(text) + 1}"


CALL = line_of("    output = model(a)")
NET = r"Net\(\[\d+, 6\] float32\)"
TOLD = {
    "forward": f"step \\d+ differs .*: {CALL}: Net gives other numbers for the whole batch than for the rows",
    "backward": f"step \\d+ differs .*: {CALL}: the rows of all ranks together give another gradient of Net.first.w",
    "samples": "step \\d+ differs .*: ranks 0 and 1 have different values of the samples of a batch: 16",
    "stream": "step \\d+ differs .*: ranks 0 and 1 have different values of a batch of a stream",
    "values": f"step \\d+ differs .*: {CALL}: ranks 0 and 1 have different values of {NET}",
    "sizes": f"step \\d+ differs .*: {CALL}: rank 0 has {NET}, but rank [12] has {NET}",
    "rates": "step \\d+ differs .*: ranks 0 and 1 have different values of SGD",
    "weights": "ranks 0 and 1 have different values of the weights \\[3, 16\\]",
}


def run(folder: Path, script: str, *words: str) -> subprocess.CompletedProcess[str]:
    (folder / "train.py").write_text(script)
    return warm.run(["-m", "echelon", "run", *words], cwd=folder)


@pytest.mark.parametrize(
    ("fault", "num_ranks"), some([(fault, 3 if fault in ("backward", "stream", "weights") else 2) for fault in TOLD], 3)
)
def test_later_difference_is_refused(tmp_path: Path, fault: str, num_ranks: int) -> None:
    """A training that differs from one device from a later step on ends with that step, the line and the ranks."""
    done = run(tmp_path, FAULTY, "-n", str(num_ranks), "train.py", fault)
    assert re.search(TOLD[fault], done.stderr), done.stderr
    assert done.returncode == 2


def test_check_can_be_left_out(tmp_path: Path) -> None:
    """With --no-check nobody compares the steps."""
    done = run(tmp_path, FAULTY, "-n", "2", "--no-check", "train.py", "rates")
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("script", "words"),
    some(
        [
            pytest.param(SOUND, ("-n", "2", "--sync-bn"), id="sync-bn"),
            pytest.param(SOUND, ("-n", "3"), id="batch-norm"),
            pytest.param(GAN, ("-n", "2"), id="gan"),
            pytest.param(GAN, ("-n", "3", "--scale", "fsdp"), id="gan-fsdp"),
        ],
        4,
    ),
)
def test_check_changes_nothing(tmp_path: Path, script: str, words: tuple[str, ...]) -> None:
    """A comparison leaves nothing behind: the training prints the same digits with and without it."""
    results = [run(tmp_path, script, *words, *more, "train.py") for more in ((), ("--no-check",))]
    assert [done.returncode for done in results] == [0, 0], results
    assert results[0].stdout == results[1].stdout
    assert results[0].stdout
