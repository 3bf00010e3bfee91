"""Ranks that train alone, as a loop over them in one process and plain PyTorch: `--sync-every` is compared with it."""

import copy

import torch
from torch import nn

SCRIPT = """
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
torch.set_default_dtype(torch.float64)
x, y = torch.randn(46, 6), torch.randint(0, 3, (46,))
y[::7] = -100
loader = DataLoader(TensorDataset(x, y), batch_size=8)
trunk = nn.Sequential(nn.Linear(6, 16, bias=False), nn.BatchNorm1d(16), nn.Tanh())
head = nn.Linear(16, 3)
model = nn.Sequential(trunk, head)
often = torch.optim.AdamW(trunk.parameters(), lr=1e-2)
seldom = torch.optim.SGD(head.parameters(), lr=0.1, momentum=0.9)
for epoch in range(4):
    model.train()
    for step, (inputs, targets) in enumerate(loader):
        loss = nn.functional.cross_entropy(model(inputs), targets)
        model.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        often.step()
        if step % 2:
            seldom.step()
        print(loss.item())
    if epoch == 1:
        model.eval()
        with torch.no_grad():
            print(nn.functional.cross_entropy(model(x), y).item())
        best = {name: one.clone() for name, one in model.state_dict().items()}
    if epoch == 2:
        model.load_state_dict(best)
torch.save(model.state_dict(), "model.pt")
"""
"""Two optimizers of which one steps every other time, clipping, BatchNorm, targets to ignore, an evaluation midway and
a step back to what was evaluated."""


class Together:
    """What the ranks have in common of the weights of one optimizer."""

    def __init__(self, weights, num_steps, learning_rate, momentum, is_late):
        self.weights = weights  # of each rank
        self.num_steps, self.is_late, self.count, self.is_apart = num_steps, is_late, 0, False
        self.common = [nn.Parameter(one.detach().clone()) for one in weights[0]]
        self.starts = [[one.detach().clone() for one in own] for own in weights]
        self.pending = None
        self.outer = torch.optim.SGD(self.common, lr=learning_rate, momentum=momentum, nesterov=momentum > 0)

    def note_step(self):
        self.count, self.is_apart = self.count + 1, True
        if self.count == self.num_steps:
            self.meet(waits=not self.is_late)

    def meet(self, *, waits):
        each = list(zip(self.weights, self.starts, strict=True))
        drifts = [[x.detach() - s for x, s in zip(own, start, strict=True)] for own, start in each]
        if self.pending is not None:
            self.advance(self.pending)
        self.pending, self.count = (None if waits else drifts), 0
        if waits and self.is_apart:
            self.advance(drifts)
        self.is_apart = False
        for own, start, drift in zip(self.weights, self.starts, drifts, strict=True):
            for x, s, d, common in zip(own, start, drift, self.common, strict=True):
                x.data.copy_(common.data if waits else common.data + d)
                s.copy_(x.data)

    def advance(self, drifts):
        for place, common in enumerate(self.common):
            common.grad = -sum(own[place] for own in drifts) / len(drifts)
        self.outer.step()


def simulate(num_ranks, *rule):
    """Return what the script prints and saves."""
    usual = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)  # rounding would grow to 1e-4 in these steps
    try:
        return _simulate(num_ranks, rule)
    finally:
        torch.set_default_dtype(usual)


def _simulate(num_ranks, rule):
    torch.manual_seed(0)
    x, y = torch.randn(46, 6), torch.randint(0, 3, (46,))
    y[::7] = -100
    trunk = nn.Sequential(nn.Linear(6, 16, bias=False), nn.BatchNorm1d(16), nn.Tanh())
    models = [nn.Sequential(trunk, nn.Linear(16, 3))]
    models += [copy.deepcopy(models[0]) for _ in range(num_ranks - 1)]
    often = [torch.optim.AdamW(one[0].parameters(), lr=1e-2) for one in models]
    seldom = [torch.optim.SGD(one[1].parameters(), lr=0.1, momentum=0.9) for one in models]
    parts = [Together([list(one[at].parameters()) for one in models], *rule) for at in (0, 1)]
    printed, best = [], {}
    for epoch in range(4):
        for step in range(6):
            rows = torch.arange(8 * step, min(8 * step + 8, 46)).tensor_split(num_ranks)
            printed.append(0.0)
            for rank, (model, own) in enumerate(zip(models, rows, strict=True)):
                loss = nn.functional.cross_entropy(model(x[own]), y[own])
                fraction = len(own) / sum(map(len, rows))
                printed[-1] += loss.item() * fraction
                model.zero_grad()
                (loss * fraction * num_ranks).backward()
                nn.utils.clip_grad_norm_(model.parameters(), 0.5)
                often[rank].step()
                if step % 2:
                    seldom[rank].step()
            parts[0].note_step()
            if step % 2:
                parts[1].note_step()
        if epoch:
            settle(models, parts)
        if epoch == 2:
            for one in models:
                one.load_state_dict(best)
            parts = [Together([list(one[at].parameters()) for one in models], *rule) for at in (0, 1)]
        if epoch == 1:
            best = copy.deepcopy(models[0].state_dict())
            with torch.no_grad():
                printed.append(nn.functional.cross_entropy(models[0].eval()(x), y).item())
            models[0].train()
    return printed, models[0].state_dict()


def settle(models, parts):
    for one in parts:
        one.meet(waits=True)
    for buffers in zip(*(one.buffers() for one in models), strict=True):
        if buffers[0].is_floating_point():
            mean = sum(buffers) / len(buffers)
            for one in buffers:
                one.copy_(mean)
