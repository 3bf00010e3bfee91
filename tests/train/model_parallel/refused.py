"""Models and trainings that cannot be split; each refusal is printed, and the next one tried."""

import copy
import gc
import os
import sys

import numpy
import torch
from split_model import GPT
from torch import nn


class Odd(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(nn.Sequential(nn.Conv1d(8, 8, 1), nn.ReLU()) for _ in range(2))
        self.head = nn.Linear(8, 4)

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return self.head(x)


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear, self.norm = nn.Linear(8, 8), nn.BatchNorm1d(8)

    def forward(self, x):
        return self.norm(self.linear(x))


def heads():
    model = GPT()
    model.h[1].attn.n_head = 3
    return model


def counting():
    model = GPT()
    model.ln_f.register_buffer("count", torch.zeros(()))
    model.ln_f.register_forward_pre_hook(lambda module, _: setattr(module, "count", module.count + 1))
    return model


def tokens(rows=8, length=8):
    return torch.randint(24, (rows, length))


def train(model, inputs, *, optimizer=torch.optim.SGD, scaled=False, more=0.0):
    optimizer = optimizer(model.parameters(), lr=0.1)
    outputs = model(inputs)
    loss = (outputs[0] if isinstance(outputs, tuple) else outputs).square().mean() + more
    (torch.amp.GradScaler("cpu").scale(loss) if scaled else loss).backward()
    optimizer.step()
    return model


def by_closure(model, inputs):
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=9)

    def closure():
        optimizer.zero_grad()
        loss = model(inputs)[0].square().mean()
        loss.backward()
        return loss

    optimizer.step(closure)


def other_batches():
    rows = numpy.random.default_rng(os.getpid()).integers(24, size=(8, 8))
    train(GPT(), torch.from_numpy(rows), more=1e4)  # as in a large batch: all have the same loss, to three digits


CASES = {
    "no blocks": lambda: train(nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 2)), torch.randn(8, 8)),
    "unknown layers": lambda: train(Odd(), torch.randn(8, 8, 8)),
    "heads": lambda: train(heads(), tokens()),
    "lbfgs": lambda: train(GPT(), tokens(), optimizer=torch.optim.LBFGS),
    "lbfgs by closure": lambda: by_closure(GPT(), tokens()),
    "adafactor": lambda: train(GPT(), tokens(), optimizer=torch.optim.Adafactor),
    "scaler": lambda: train(GPT(), tokens(), scaled=True),
    "length": lambda: train(GPT(), tokens(length=7)),
    "images": lambda: train(nn.Sequential(nn.Conv2d(3, 4, 1), nn.Flatten()), torch.randn(4, 3, 8, 8)),
    "batch norm": lambda: train(nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8)), torch.randn(8, 8, 8)),
    "batch norm in blocks": lambda: train(nn.Sequential(*[Block() for _ in range(2)]), torch.randn(8, 8)),
    "a weight": lambda: [p.norm() for p in train(GPT(), tokens()).parameters()],
    "a gradient": lambda: [p.grad.norm() for p in train(GPT(), tokens()).parameters()],
    "a copy": lambda: copy.deepcopy(train(GPT(), tokens())),
    "a buffer": lambda: train(counting(), tokens()),
    "a part": lambda: train(GPT(), tokens()).h[0](torch.randn(2, 8, 32)),
    "an input": lambda: train(nn.Sequential(*GPT().h), torch.randn(8, 8, 32, requires_grad=True)),
    "saved whole": lambda: torch.save(train(GPT(), tokens()), "whole.pt"),
    "other batches": other_batches,
    "other targets": lambda: train(GPT(), tokens(), more=10 ** (30 * numpy.random.default_rng(os.getpid()).random())),
}
for name in [word.replace("-", " ") for word in sys.argv[1:]]:
    try:
        CASES[name]()
        print(f"{name}: fine")
    except BaseException as error:  # noqa: BLE001  (a refusal is no Exception, and ends a run if nobody withdraws it)
        error.withdraw()
        print(f"{name}: {type(error).__module__}.{type(error).__name__}: {error}")
    gc.collect()
