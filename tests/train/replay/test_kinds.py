"""Trainings that carry state in unusual ways are killed, and go on as if nobody had disturbed them."""

import re
from pathlib import Path

import pytest

from .test_resume import CLOSE, Folder

HEAD = """
import itertools, os, sys, time
import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset, TensorDataset
torch.manual_seed(0)
X = torch.randn(96, 4)
Y = X.sum(1, keepdim=True)
model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
number = 0
def tell(*values):
    global number
    number += 1
    values = [float(torch.as_tensor(value).detach()) for value in values]
    print("step", number, *(f"{value:.6f}" for value in values), flush=True)
    if "killed" in sys.argv and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0" and number == 19:
        time.sleep(0.3)
        os.kill(os.getpid(), 9)
def train(x, y):
    loss = (model(x) - y).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss
"""
HOLDERS = """
import functools
def averages():
    average = torch.zeros(4)
    while True:
        x = yield average
        average = average * 0.9 + x.mean(0)
def adder():
    total = torch.zeros(4)
    def add(x):
        nonlocal total
        total = total + x[0]
        return total
    return add
def keep(kept, x):
    kept["last"] = x[1]
    return kept.get("before", x[0])
class Sums:
    __slots__ = ("sum",)
    of_all = torch.zeros(4)
    def add(self, x):
        self.sum = self.sum + x.mean(0)
        Sums.of_all = Sums.of_all + self.sum
        return self.sum
average, add, keep, sums = averages(), adder(), functools.partial(keep, {}), Sums()
next(average)
sums.sum = torch.zeros(4)
add_sum = sums.add
del sums
for epoch in range(4):
    for x, y in DataLoader(TensorDataset(X, Y), batch_size=12, shuffle=True):
        values = [average.send(x), add(x), keep(x), add_sum(x), Sums.of_all]
        keep.args[0]["before"] = keep.args[0]["last"]
        tell(train(x, y), *(value.sum() for value in values))
"""
DRAWS = """
for round in range(9):
    with torch.no_grad():
        coins = torch.bernoulli(torch.sigmoid(model(X)))
    for rows in torch.randperm(96).split(20):
        tell(train(X[rows], Y[rows] + coins[rows]), rows[0])
"""
SAMPLERS = """
import random
class Order(torch.utils.data.Sampler):
    def __init__(self):
        self.num_passes, self.chance = 0, random.Random(3)
    def __len__(self):
        return 60
    def __iter__(self):
        self.num_passes += 1
        for _ in range(60):
            yield self.chance.randrange(96)
class Stream(IterableDataset):
    def __init__(self):
        self.files, self.num_read = list(range(96)), 0
    def __iter__(self):
        random.Random(self.num_read).shuffle(self.files)
        for place in self.files:
            self.num_read += 1
            yield X[place], Y[place]
def forever(loader):
    while True:
        yield from loader
order, stream = Order(), Stream()
ordered = DataLoader(TensorDataset(X, Y), batch_size=12, sampler=order, num_workers=2)
hard = DataLoader(TensorDataset(X, Y, torch.arange(96)), batch_size=12,
                  sampler=torch.utils.data.WeightedRandomSampler(torch.ones(96), 60))
streamed, harder = forever(DataLoader(stream, batch_size=12)), forever(hard)
for epoch in range(6):
    for x, y in ordered:
        z, w = next(streamed)
        u, v, places = next(harder)
        hard.sampler.weights[places] *= 0.5
        sums = [x.sum(), z.sum(), u.sum(), hard.sampler.weights.sum(), sum(stream.files[:3])]
        tell(train(torch.cat([x, z, u]), torch.cat([y, w, v])), *sums, order.num_passes, stream.num_read)
"""
SNAPSHOTS = """
kept = []
for epoch in range(4):
    for x, y in DataLoader(TensorDataset(X, Y), batch_size=12, shuffle=True):
        loss = train(x, y)
        torch.save(number, f"step-{number}.pt")
        kept.append(f"step-{number}.pt")
        if len(kept) > 2:
            os.remove(kept.pop(0))
        if number == 17:
            os.mkdir("later")
        if number % 5 == 2:
            torch.save(number, "new.pt")
            os.replace("new.pt", "last.pt")
        tell(loss, *(torch.load(name) for name in kept[-1:]), os.path.exists("later"))
"""
LEFT_OUT = """
NUM_CALLS, HISTORY = 0, []
class Model(nn.Module):
    places = {"call": (0, 0)}
    def __init__(self):
        super().__init__()
        self.layer, self.means, self.late = nn.Linear(4, 1), [], {}
    def forward(self, x):
        global NUM_CALLS
        NUM_CALLS += 1
        HISTORY.append(NUM_CALLS)
        self.places["call"] = (NUM_CALLS, self.places["call"][0])
        self.means = [*self.means, x.detach().mean(0)][-3:]
        self.late["total"] = self.late.get("total", 0) + 1
        return self.layer(x - sum(self.means) / len(self.means)) * (1 + self.late["total"] / 1000)
class Data(torch.utils.data.Dataset):
    reads = 0
    def __len__(self):
        return 96
    def __getitem__(self, place):
        self.reads += 1
        return X[place] * (1 + self.reads / 10000), Y[place]
class Steps(torch.optim.SGD):
    def step(self, closure=None):
        self.counts.append(len(self.counts))
        return super().step(closure)
model, data, before = Model(), Data(), HISTORY
hooks = {}
model.register_forward_hook(lambda *_: hooks.update(calls=hooks.get("calls", 0) + 1))
optimizer = Steps(model.parameters(), lr=0.01)
optimizer.counts = []
endless = itertools.count()
for epoch in range(4):
    for x, y in DataLoader(data, batch_size=12, shuffle=True):
        next(endless)
        loss = train(x, y)
        HISTORY.append(0)
        tell(loss, NUM_CALLS, len(HISTORY), before is HISTORY, data.reads, len(optimizer.counts), sum(hooks.values()))
        if number == 9:
            HISTORY = []
"""
COPIES = """
import copy
best, lowest, buffer = None, 9.0, []
for epoch in range(4):
    for x, y in DataLoader(TensorDataset(X, Y), batch_size=12, shuffle=True):
        buffer = [*buffer, (x, y)][-3:]
        loss = train(*buffer[0]).item()
        if loss < lowest:
            best, lowest = copy.deepcopy(model), loss
        tell(loss, lowest, *best.weight.flatten())
"""
PUT_BACK = {"holders": HOLDERS, "snapshots": SNAPSHOTS}
REPEATED = {"draws": DRAWS, "samplers": SAMPLERS, "left-out": LEFT_OUT, "copies": COPIES}


ON_TWO_RANKS = ("holders", "copies")


@pytest.mark.parametrize(
    ("kind", "num_ranks"),
    [*((kind, 1) for kind in [*PUT_BACK, *REPEATED] if kind != "copies"), *((kind, 2) for kind in ON_TWO_RANKS)],
)
def test_killed_training_is_the_same(tmp_path: Path, kind: str, num_ranks: int) -> None:
    script = tmp_path / "script.py"
    script.write_text(HEAD + (PUT_BACK | REPEATED)[kind])
    wanted = Folder(tmp_path / "plain", script).plain()
    killed = Folder(tmp_path / "killed", script, "killed").run(num_ranks, "--checkpoint-every", "4steps")
    assert killed.returncode == 0, killed.stderr
    assert ("without computing" in killed.stderr) == (kind in REPEATED), killed.stderr
    assert "continues after step" in killed.stderr
    here, there = lines_of(killed.stdout), lines_of(wanted.stdout)
    assert here.keys() == there.keys()
    for number, values in there.items():
        assert here[number] == pytest.approx(values, rel=CLOSE, abs=CLOSE), number


FAILING = """
class Model(nn.Linear):
    mean = None
    def forward(self, x):
        self.mean = x.detach().mean(0)
        return super().forward(x)
model = Model(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
endless = itertools.count()
for x, y in DataLoader(TensorDataset(X, Y), batch_size=4):
    next(endless)
    tell(train(x, y), model.mean.sum())
"""


def test_error_in_a_repeated_loop_is_not_blamed_on_the_script(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(HEAD + FAILING)
    killed = Folder(tmp_path / "killed", script, "killed").run(1, "--checkpoint-every", "4steps")
    assert killed.returncode == 2, killed.stderr
    assert "AttributeError: 'NoneType' object has no attribute 'sum': it came while the loop was rep" in killed.stderr
    assert "Traceback" not in killed.stderr
    assert "script.py:37: tell(train(x, y), model.mean.sum())" in killed.stderr


CHANGED_SAMPLER = """
class Batches:
    size = 4
    def __len__(self):
        return 24
    def __iter__(self):
        begin = 0
        while begin < 96:
            yield range(begin, min(begin + self.size, 96))
            begin += self.size
batches = Batches()
for x, y in DataLoader(TensorDataset(X, Y), batch_sampler=batches):
    tell(train(x, y))
    batches.size = 4 if number > 4 else 3
"""


def test_sampler_that_gives_other_samples_is_refused(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(HEAD + CHANGED_SAMPLER)
    killed = Folder(tmp_path / "killed", script, "killed").run(1, "--checkpoint-every", "4steps")
    assert killed.returncode == 2, killed.stderr
    assert "ScalingError: Batches gives other samples than before the checkpoint" in killed.stderr


def lines_of(text: str) -> "dict[str, list[float]]":
    """Return the numbers of each step; a step that is printed again counts."""
    return {
        match[1]: [float(word) for word in match[2].split()]
        for match in re.finditer(r"^step (\d+) (.*)$", text, re.MULTILINE)
    }
