"""Training steps that are put together at random, as a script for one device would write them.

A composition names operations; each takes tensors of shape (samples, 4) from a pool and puts one more into it. `train`
runs it, in plain PyTorch or on the ranks of a scaled run, and returns what both must agree on. `serve` is what a rank
does: it trains compositions as they come, until there are no more.
"""

import faulthandler
import os
import pickle
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, BinaryIO

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

WIDTH = 4
SECONDS_OF_ONE = 60


@dataclass(frozen=True, kw_only=True)
class Composition:
    """One training: what is computed in a step, and how gradients come of it."""

    num_samples: int
    is_loaded: bool
    """Whether batches come from a DataLoader, or are tensors of the script."""
    operations: tuple[tuple[str, int, int], ...]
    """Each with the places in the pool of what it takes, counted from the last."""
    losses: tuple[tuple[str, int, int], ...]
    ending: str
    num_steps: int
    has_two_optimizers: bool


class Rows(nn.Module):
    """Models that treat each row by itself, in as many ways as models are called."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.scale = nn.Parameter(torch.randn(WIDTH))
        self.context: Any = 0.0

    def forward(self, x: Any, other: Any = None, *, how: str = "") -> Any:
        """Return rows, or rows with something beside them."""
        h = torch.tanh(self.first(x))
        if other is not None:
            h = h * torch.sigmoid(self.second(other))
        return getattr(self, how)(x, h) if how else h + self.context

    def pair(self, x: Any, h: Any) -> Any:
        """Return a tuple with a list."""
        return h, [self.second(x), h * 2]

    def named(self, x: Any, h: Any) -> Any:
        """Return a dict."""
        return {"h": h, "x": torch.sin(self.second(x))}

    def own_loss(self, x: Any, h: Any) -> Any:
        """Return a mean over samples beside rows."""
        return (h - self.second(x)).pow(2).mean(), h

    def penalty(self, x: Any, h: Any) -> Any:
        """Return what is the same for all samples beside rows."""
        return h, self.scale.pow(2).sum() + self.second.weight.abs().mean()

    def counted(self, x: Any, h: Any) -> Any:
        """Return counts, sums and lengths beside rows."""
        hits = (h > 0).sum()
        return {"h": h, "hits": hits, "len": len(x), "number": hits.item(), "width": h.shape[1],
                "total": h.pow(2).sum(), "mean": self.second(h).abs().mean()}  # fmt: skip

    def in_place(self, x: Any, h: Any) -> Any:
        """Write to what was computed."""
        h = self.second(h).clone()
        h[:, 0] = x[:, 1]
        h[:, 1:].mul_(0.5)
        return h.relu_() + h

    def some_rows(self, x: Any, h: Any) -> Any:
        """Use a layer for some of the rows, which a rank may have none of."""
        mask = h[:, 0] > 0.2
        out = h * self.scale
        if mask.any():
            out = out.clone()
            out[mask] = torch.tanh(self.second(h[mask]))
        return out

    def recurrent(self, x: Any, h: Any) -> Any:
        """Apply a layer several times."""
        for _ in range(2):
            h = torch.tanh(self.second(h) + x)
        return h


class Sample:
    """A sample that is an object of the script's own."""

    def __init__(self, x: Any) -> None:
        self.x = x


class Odd(nn.Module):
    """A model that draws by itself, trains inside of itself, or takes lists and arrays."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.own = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.cell, self.attention = nn.GRU(WIDTH, WIDTH), nn.MultiheadAttention(WIDTH, 2)
        self.optimizer = torch.optim.SGD(self.own.parameters(), lr=0.1)

    def forward(self, x: Any, how: str) -> Any:
        """Return rows."""
        return torch.tanh(getattr(self, how)(x))

    def one_distribution(self, x: Any) -> Any:
        """Draw several numbers for each row from one distribution."""
        chosen = torch.multinomial(torch.arange(1.0, WIDTH + 1), len(x) * 2, replacement=True).view(-1, 2)
        return self.first(x) + self.second(x).gather(1, chosen).sum(1, keepdim=True)

    def indices(self, x: Any) -> Any:
        """Draw one vector that has all indices."""
        return self.first(x).gather(1, torch.randint(0, WIDTH, (len(x) * WIDTH,)).view(-1, WIDTH))

    def features(self, x: Any) -> Any:
        """Draw as much for any batch."""
        return self.first(x)[:, torch.randperm(WIDTH)] + torch.rand(3).sum() + torch.randn(2, WIDTH).sum(0)

    def coins(self, x: Any) -> Any:
        """Draw with numpy and Python."""
        h = self.first(x) * float(np.random.rand())
        return self.second(h) if random.random() < 0.5 else h

    def numpy_rows(self, x: Any) -> Any:
        """Draw a row for each sample with numpy."""
        return self.first(x) + torch.as_tensor(np.random.randn(len(x), WIDTH))

    def shuffled(self, x: Any) -> Any:
        """Put the rows in another order."""
        return self.first(x) + x[torch.randperm(len(x))]

    def time_first(self, x: Any) -> Any:
        """Compute layers that expect time first."""
        h = torch.stack([x, self.first(x)])
        return self.cell(h)[0][-1] + self.attention(h, h, h, need_weights=False)[0][0]

    def wrong_time(self, x: Any) -> Any:
        """Take the rows for steps of time."""
        return self.cell(x[:, None])[0][:, 0]

    def inner_step(self, x: Any) -> Any:
        """Train a part of the model."""
        loss = self.own(x.detach()).pow(2).mean()
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return self.first(x) + self.own(x).detach()

    def fast(self, x: Any) -> Any:
        """Go one step with weights that are not kept."""
        weights = list(self.first.parameters())
        gradients = torch.autograd.grad(self.first(x).pow(2).mean(), weights, create_graph=True)
        return F.linear(x, *[weight - 0.1 * one for weight, one in zip(weights, gradients, strict=True)])

    def array(self, x: Any) -> Any:
        """Take an array."""
        return self.first(torch.as_tensor(x))

    def listed(self, x: Any) -> Any:
        """Take a list of rows."""
        return self.first(torch.stack(x))

    def objects(self, x: Any) -> Any:
        """Take a list of objects."""
        return self.first(torch.stack([one.x for one in x]))

    def numbers(self, x: Any) -> Any:
        """Take a list of lists of numbers."""
        return self.first(torch.tensor(x))


class WritesInput(nn.Module):
    """A model that changes its input in place, as nn.ReLU(inplace=True) does as a first layer."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Any) -> Any:
        """Return rows, and leave others in the input."""
        x.mul_(0.7).add_(0.1)
        return torch.tanh(self.layer(x))


class Double(torch.autograd.Function):
    """A function of the script."""

    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        """Return twice as much."""
        return 2 * x

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        """Return its gradient."""
        return 2 * gradients[0]


class Product(torch.autograd.Function):
    """A function of two that keeps what it has seen, and can be differentiated again."""

    @staticmethod
    def forward(ctx: Any, x: Any, y: Any) -> Any:
        """Return a product."""
        ctx.save_for_backward(x, y)
        return x * y

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        """Return its gradients."""
        x, y = ctx.saved_tensors
        return gradients[0] * y, gradients[0] * x


class Mixed(torch.autograd.Function):
    """A function that mixes rows."""

    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        """Return running sums over the batch."""
        return x.cumsum(0) / len(x)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        """Return its gradient."""
        return gradients[0].flip(0).cumsum(0).flip(0) / len(gradients[0])


class Dirty(torch.autograd.Function):
    """A function that changes its input."""

    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        """Halve in place."""
        ctx.mark_dirty(x)
        return x.mul_(0.5)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        """Return its gradient."""
        return gradients[0] * 0.5


class Assign(torch.autograd.Function):
    """A function that writes past autograd, as some libraries do."""

    @staticmethod
    def forward(ctx: Any, scratch: Any, value: Any, index: Any) -> Any:
        """Write a value into a part."""
        ctx.index = index
        scratch.data[index] = value
        return scratch

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        """Return its gradients; what is overwritten counts here, as in the library that does so."""
        return gradients[0], gradients[0][ctx.index], None


class Script:
    """The parts of a composition: models, weights, and tensors that do not come from a batch."""

    def __init__(self, num_samples: int) -> None:
        torch.manual_seed(3)
        np.random.seed(3)
        random.seed(3)
        self.a, self.b, self.c, self.writes = Rows(), Rows(), Rows(), WritesInput()
        self.odd = Odd()
        self.matrix = nn.Parameter(torch.randn(WIDTH, WIDTH) * 0.5)
        self.vector = nn.Parameter(torch.randn(WIDTH))
        self.whole = torch.randn(num_samples, WIDTH)
        self.table = nn.Parameter(torch.randn(num_samples, WIDTH))
        self.leaf = torch.randn(num_samples, WIDTH).requires_grad_()
        self.mark = torch.tensor(0.0)
        self.extra: list[Any] = []
        """Parts of the loss that operations have left."""

    def parameters(self) -> list[list[nn.Parameter]]:
        """Return the weights of two optimizers."""
        own = {id(one) for one in self.odd.own.parameters()}  # which the model trains by itself
        odd = [one for one in self.odd.parameters() if id(one) not in own]
        second = [*self.b.parameters(), *self.c.parameters(), *odd, self.vector]
        return [[*self.a.parameters(), *self.writes.parameters(), self.matrix, self.table], second]

    def rows(self, x: Any) -> Any:
        """Return rows that are whole on every rank, as many as a tensor has."""
        return self.whole[: len(x)]


Operation = Callable[[Script, Any, Any], Any]


def _keep(script: Script, loss: Any, value: Any) -> Any:
    script.extra.append(loss)
    return value


def _counted(s: Script, x: Any) -> Any:
    """Use all that a model returns beside its rows."""
    out = s.c(x, how="counted")
    share = out["hits"] / (out["len"] * out["width"]) + out["number"] * 0.01
    return out["h"] * share + out["total"] * 0.01 + out["mean"]


def _with_context(model: Rows, context: Any, x: Any) -> Any:
    model.context = context
    try:
        return model(x)
    finally:
        model.context = 0.0


def _fast_weights(s: Script, x: Any, z: Any) -> Any:
    """Call a model with weights that are one step ahead, as in meta-learning."""
    names, weights = zip(*s.a.named_parameters(), strict=True)
    inner = (s.a(x) - z.detach()).pow(2).mean()
    gradients = torch.autograd.grad(inner, weights, create_graph=True, allow_unused=True)
    ahead = [w if g is None else w - 0.1 * g for w, g in zip(weights, gradients, strict=True)]
    return torch.func.functional_call(s.a, dict(zip(names, ahead, strict=True)), (x,))


def _penalty_on_gradient(s: Script, x: Any) -> Any:
    point = x.detach().clone().requires_grad_()
    (gradient,) = torch.autograd.grad(s.c(point).sum(), point, create_graph=True)
    return _keep(s, (gradient.norm(dim=1) - 1).pow(2).mean(), x)


def _perturbed(s: Script, x: Any) -> Any:
    """Move a batch along the gradient of its loss, as attacks do."""
    point = x.detach().clone().requires_grad_()
    (gradient,) = torch.autograd.grad(s.b(point).pow(2).mean(), point)
    return x + 0.1 * torch.tanh(gradient * 100)


def _hooked(x: Any) -> Any:
    y = x * 1.0
    if y.requires_grad:
        y.register_hook(lambda gradient: gradient * 0.5 + 0.01)
    return y


def _changed(x: Any, change: Callable[[Any], Any]) -> Any:
    y = x.clone()
    change(y)
    return y


def _assigned(x: Any, z: Any) -> Any:
    k = torch.empty(*x.shape, 2, dtype=x.dtype)
    k[..., 0] = x
    k[..., 1] = z * 2
    return k.sum(-1)


def _assigned_by_function(x: Any, z: Any) -> Any:
    k = torch.empty(*x.shape, 2, dtype=x.dtype)
    k = Assign.apply(k, x, (..., 0))
    k = Assign.apply(k, z * 2, (..., 1))
    return k.sum(-1)


def _row_changed_later(x: Any) -> Any:
    """Keep a row, change it, and use the batch."""
    y = x.clone()
    row = y[0]
    row.mul_(3)
    total = y + row
    row.add_(1)
    return total + y


def _batch_changed_later(x: Any) -> Any:
    """Keep a row, change the batch, and use the row."""
    y = x.clone()
    row = y[0]
    y.mul_(2)
    return y + row


def _of_each(x: Any) -> Any:
    y = x.clone()
    for place, row in enumerate(y):
        row.mul_(1 + 0.1 * place)
    return y


def _no_grad_target(s: Script, x: Any) -> Any:
    with torch.no_grad():
        return s.b(x)


def _masked(x: Any, z: Any) -> Any:
    mask = z[:, 0] > 0
    return x + torch.where(mask[:, None], x, z) + (x[mask].sum() if bool(mask.any()) else 0.0)


def _of_chosen(s: Script, x: Any) -> Any:
    order = torch.arange(len(x) - 1, -1, -1)
    return s.b(x[order])[order]


def _of_both(s: Script, x: Any, z: Any) -> Any:
    both = s.a(torch.cat([x, z]))
    return both[: len(x)] + both[len(x) :]


def _list_of_outputs(s: Script, x: Any) -> Any:
    outputs = [x, s.a(x)]
    outputs.append(s.b(outputs[-1]))
    outputs[1] = outputs[1] * 2
    return torch.stack(outputs).mean(0)


def _out(x: Any, z: Any) -> Any:
    y = torch.zeros(x.shape, dtype=x.dtype)
    torch.add(x.detach(), z.detach(), out=y)
    return x + y


MODELS: dict[str, Operation] = {
    "a": lambda s, x, z: s.a(x),
    "b": lambda s, x, z: s.b(x),
    "keyword": lambda s, x, z: s.a(x=x, other=z),
    "two inputs": lambda s, x, z: s.b(x, z),
    "pair": lambda s, x, z: (lambda h, other: h + other[0] * other[1])(*s.a(x, how="pair")),
    "dict": lambda s, x, z: sum(s.c(x, how="named").values()),
    "own loss": lambda s, x, z: _keep(s, *s.b(x, how="own_loss")),
    "own penalty": lambda s, x, z: (lambda h, loss: _keep(s, loss, h))(*s.c(x, how="penalty")),
    "counted": lambda s, x, z: _counted(s, x),
    "in place inside": lambda s, x, z: s.a(x, how="in_place"),
    "some rows inside": lambda s, x, z: s.b(x, how="some_rows"),
    "recurrent": lambda s, x, z: s.c(x, how="recurrent"),
    "recurrent outside": lambda s, x, z: s.a(torch.tanh(s.a(x) + z)),
    "whole beside": lambda s, x, z: s.b(x, s.rows(x)),
    "vector beside": lambda s, x, z: s.b(x, s.vector),
    "made of weights beside": lambda s, x, z: s.b(x, s.vector * 2),
    "mean beside": lambda s, x, z: s.c(x, z.mean(0)),
    "first is whole": lambda s, x, z: s.b(s.rows(x), x),
    "whole alone": lambda s, x, z: s.b(s.rows(x)) + x,
    "table": lambda s, x, z: s.c(s.table[: len(x)] * 1.0) + x,
    "leaf": lambda s, x, z: s.c(x, s.leaf[: len(x)]),
    "leaf first": lambda s, x, z: s.c(s.leaf[: len(x)]) * x,
    "context of weights": lambda s, x, z: _with_context(s.a, s.vector * 3, x),
    "context of batch": lambda s, x, z: _with_context(s.a, z.mean(0) * 1.0, x),
    "context of rows": lambda s, x, z: _with_context(s.a, s.b(z).sin(), s.b(x)),
    "context of whole": lambda s, x, z: _with_context(s.a, z.sort(0).values.sum(0), x),
    "fast weights": _fast_weights,
    "no grad": lambda s, x, z: x + _no_grad_target(s, x),
    "distilled": lambda s, x, z: _keep(s, F.mse_loss(s.a(x), _no_grad_target(s, z)), x),
    "writes its input": lambda s, x, z: (lambda y: s.writes(y) + y)(x.clone()),
    "writes a mixed input": lambda s, x, z: (lambda y: s.writes(y) + y)(x.flip(0).contiguous() * 1.0),
    "order": lambda s, x, z: _of_chosen(s, x),
    "both": _of_both,
    "list of outputs": lambda s, x, z: _list_of_outputs(s, x),
    "penalty on gradient": lambda s, x, z: _penalty_on_gradient(s, x),
    "perturbed": lambda s, x, z: _perturbed(s, x),
    "of a slice": lambda s, x, z: x + s.a(x[: (len(x) + 1) // 2]).sum(0),
    "of each": lambda s, x, z: torch.stack([s.b(one[None])[0] for one in x]),
}
ODD: dict[str, Operation] = {
    **{how.replace("_", " "): (lambda s, x, z, how=how: s.odd(x, how)) for how in (
        "one_distribution", "indices", "features", "coins", "numpy_rows", "shuffled", "time_first", "wrong_time",
        "inner_step", "fast")},
    "array": lambda s, x, z: x + s.odd(x.detach().numpy(), "array"),
    "listed": lambda s, x, z: x + s.odd(list(x.detach()), "listed"),
    "objects": lambda s, x, z: x + s.odd([Sample(one) for one in x.detach()], "objects"),
    "numbers": lambda s, x, z: x + s.odd(x.detach().tolist(), "numbers"),
}  # fmt: skip
"""Models that are refused more often than others."""
FREE: dict[str, Operation] = {
    "sum": lambda s, x, z: x + z,
    "product": lambda s, x, z: torch.tanh(x * z),
    "matrix": lambda s, x, z: torch.tanh(x @ s.matrix),
    "vector": lambda s, x, z: x * torch.sigmoid(s.vector),
    "number": lambda s, x, z: x * 0.5 - 1,
    "whole": lambda s, x, z: x + s.rows(x),
    "table outside": lambda s, x, z: x * torch.tanh(s.table[: len(x)]),
    "centred": lambda s, x, z: x - x.mean(0),
    "scaled": lambda s, x, z: x / (x.std() + 1) if x.numel() > 1 else x,
    "by norm": lambda s, x, z: x / (x.norm() + 1),
    "by its maximum": lambda s, x, z: x - x.max(0).values,
    "total": lambda s, x, z: x + z.mean() * z.sum(),
    "running": lambda s, x, z: x.cumsum(0) / len(x),
    "sorted": lambda s, x, z: torch.sort(x, 0).values,
    "turned": lambda s, x, z: x.T.contiguous().T,
    "rolled": lambda s, x, z: x.roll(1, 0),
    "over the batch": lambda s, x, z: x.softmax(0) * len(x),
    "attention": lambda s, x, z: torch.softmax(x @ z.T, 1) @ x,
    "distances": lambda s, x, z: torch.tanh(((x[:, None] - z[None]) ** 2).sum(-1).sum(1))[:, None] + x,
    "einsum": lambda s, x, z: torch.tanh(torch.einsum("bi,bj->bj", x, z)),
    "dot": lambda s, x, z: torch.stack([x, 2 * z], -1) @ torch.tensor([0.3, 0.5]),
    "chosen": lambda s, x, z: x[torch.arange(len(x) - 1, -1, -1)],
    "first": lambda s, x, z: x + x[0],
    "every second": lambda s, x, z: x + z[::2].mean(0),
    "masked": lambda s, x, z: _masked(x, z),
    "repeated": lambda s, x, z: x.repeat(2, 1)[: len(x)] + x.repeat_interleave(2, 0)[: len(x)],
    "side by side": lambda s, x, z: torch.cat([x[:, :2], z[:, 2:]], 1),
    "one after the other": lambda s, x, z: torch.cat([x, z])[1 : len(x) + 1],
    "stacked": lambda s, x, z: torch.stack([x, z]).mean(0) + torch.stack([x, z], 1).prod(1),
    "halves": lambda s, x, z: torch.cat(list(reversed(x.chunk(2)))),
    "tokens": lambda s, x, z: torch.tanh(x.view(-1, 2) @ s.matrix[:2, :2]).view(len(x), WIDTH),
    "flat": lambda s, x, z: (x.flatten() * z.reshape(-1)).view(-1, WIDTH).tanh(),
    "double": lambda s, x, z: Double.apply(x) / 2 + x,
    "own product": lambda s, x, z: torch.tanh(Product.apply(x, z)),
    "own mixing": lambda s, x, z: Mixed.apply(x),
    "own, in place": lambda s, x, z: (lambda y: Dirty.apply(y) + y)(x.clone()),
    "own, past autograd": lambda s, x, z: _assigned_by_function(x, z),
    "assigned": lambda s, x, z: _assigned(x, z),
    "add in place": lambda s, x, z: _changed(x, lambda y: y.add_(z)),
    "column in place": lambda s, x, z: _changed(x, lambda y: y[:, 1].mul_(z[:, 0])),
    "set a column": lambda s, x, z: _changed(x, lambda y: y.__setitem__((slice(None), 0), z[:, 1])),
    "set a row": lambda s, x, z: _changed(x, lambda y: y.__setitem__(0, z[-1])),
    "set by mask": lambda s, x, z: _changed(x, lambda y: y.__setitem__(y > 0.5, 0.25)),
    "row in place": lambda s, x, z: _changed(x, lambda y: y[0].mul_(2)),
    "rows in place": lambda s, x, z: _changed(x, lambda y: y[1:].mul_(2)),
    "each row in place": lambda s, x, z: _of_each(x),
    "turned in place": lambda s, x, z: _changed(x, lambda y: y.T[0].add_(1)),
    "flat in place": lambda s, x, z: _changed(x, lambda y: y.view(-1)[::3].mul_(0.5)),
    "part in place": lambda s, x, z: _changed(x, lambda y: y[:, 1:3].add_(z[:, :2])),
    "kept row": lambda s, x, z: _row_changed_later(x),
    "kept row of a changed batch": lambda s, x, z: _batch_changed_later(x),
    "whole in place": lambda s, x, z: torch.zeros(x.shape, dtype=x.dtype).add_(x).mul_(z),
    "data in place": lambda s, x, z: x + _changed(torch.zeros_like(x), lambda y: y.data[:, 0].copy_(z.data[:, 0])),
    "into an output": lambda s, x, z: _out(x, z),
    "relu in place": lambda s, x, z: (lambda y: F.leaky_relu(y, 0.1, inplace=True) + y)(x.clone()),
    "index added": lambda s, x, z: x.index_add(0, torch.zeros(len(x), dtype=torch.long), z) / len(x),
    "detached": lambda s, x, z: x + z.detach() * 2,
    "stopped": lambda s, x, z: x * (z.detach() > 0),
    "hooked": lambda s, x, z: _hooked(x),
    "hooked whole": lambda s, x, z: _hooked(x.flip(0)),
    "kept in doubles": lambda s, x, z: x.double() + z.to(torch.float64),
    "padded": lambda s, x, z: F.pad(x, (0, 0, 1, 0))[:-1] + F.pad(z, (1, 0))[:, :-1],
    "expanded": lambda s, x, z: x + z[:1].expand_as(x),
    "normalized": lambda s, x, z: F.layer_norm(x, (WIDTH,), s.vector),
    "normalized over the batch": lambda s, x, z: (x - x.mean(0)) / (x.var(0, unbiased=False) + 1).sqrt(),
}
OPERATIONS: dict[str, Operation] = {**MODELS, **ODD, **FREE}
LOSSES: dict[str, Operation] = {
    "mean": lambda s, x, z: x.pow(2).mean(),
    "sum": lambda s, x, z: 0.1 * x.sin().sum(),
    "sum by samples": lambda s, x, z: x.pow(2).sum() / len(x),
    "squares": lambda s, x, z: F.mse_loss(x, z),
    "absolute": lambda s, x, z: F.l1_loss(x, z.detach()),
    "whole targets": lambda s, x, z: F.mse_loss(x, s.rows(x)),
    "classes": lambda s, x, z: F.cross_entropy(x, torch.arange(len(x)) % WIDTH),
    "classes of the batch": lambda s, x, z: F.cross_entropy(x, z.argmax(1)),
    "class weights": lambda s, x, z: F.cross_entropy(x, z.argmax(1), weight=s.vector.detach().abs() + 0.1),
    "contrastive": lambda s, x, z: F.cross_entropy(F.normalize(x) @ F.normalize(z).T, torch.arange(len(x))),
    "weighted": lambda s, x, z: (x.pow(2).mean(1) * torch.linspace(1, 2, len(x))).sum(),
    "root": lambda s, x, z: (x.pow(2).mean() + 1).sqrt(),
    "product": lambda s, x, z: x.mean() * (z.pow(2).sum() + 1).log(),
    "with a penalty": lambda s, x, z: x.cos().mean() + 0.1 * s.vector.pow(2).sum() + s.matrix.abs().mean(),
    "of a mean row": lambda s, x, z: (x.mean(0) - z.mean(0)).abs().sum(),
    "of a column": lambda s, x, z: x[:, 1].pow(2).mean() + x[0].sum(),
    "largest": lambda s, x, z: x.max() + z.pow(2).mean(),
    "of each": lambda s, x, z: sum(one.pow(2).sum() for one in x) / len(x),
    "masked mean": lambda s, x, z: (x * (z > 0)).sum() / (z > 0).sum().clamp(min=1),
    "listed": lambda s, x, z: torch.stack([x.mean(), z.pow(2).mean()]).sum(),
    "in place": lambda s, x, z: _changed(x.pow(2).mean(), lambda y: y.add_(z.mean())),
    "model without weights": lambda s, x, z: nn.SmoothL1Loss()(x, z),
}


def _one(_: Script, losses: list[Any]) -> None:
    torch.stack(losses).sum().backward()


def _sum(_: Script, losses: list[Any]) -> None:
    sum(losses).backward()


def _weighted(_: Script, losses: list[Any]) -> None:
    loss = losses[0] * 0.5
    for place, other in enumerate(losses[1:]):
        loss += other / (place + 2)
    loss.backward()


def _each(_: Script, losses: list[Any]) -> None:
    for loss in losses:
        loss.backward(retain_graph=True)


def _given(_: Script, losses: list[Any]) -> None:
    losses[0].backward(gradient=torch.tensor(0.5), retain_graph=True)
    sum(losses).backward()


def _engine(_: Script, losses: list[Any]) -> None:
    torch.autograd.backward(losses)


def _engine_of_one(_: Script, losses: list[Any]) -> None:
    torch.autograd.backward(sum(losses))


def _by_hand(script: Script, losses: list[Any]) -> None:
    weights = [one for group in script.parameters() for one in group]
    gradients = torch.autograd.grad(sum(losses), weights, allow_unused=True)
    for weight, gradient in zip(weights, gradients, strict=True):
        weight.grad = gradient


ENDINGS = {
    "sum": _sum, "stacked": _one, "weighted": _weighted, "each": _each, "given": _given, "engine": _engine,
    "engine of one": _engine_of_one, "by hand": _by_hand,
}  # fmt: skip


def train(composition: Composition) -> list[list[list[float]]]:
    """Return of each step the losses, and every gradient."""
    script = Script(composition.num_samples)
    groups = script.parameters()
    if not composition.has_two_optimizers:
        groups = [groups[0] + groups[1]]
    optimizers = [torch.optim.SGD(group, lr=0.05) for group in groups]
    steps = []
    for batch in _batches(composition):
        for optimizer in optimizers:
            optimizer.zero_grad()
        losses = _losses(script, composition, *batch)
        seen = [loss.item() for loss in losses]
        ENDINGS[composition.ending](script, losses)
        weights = [one for group in groups for one in group]
        nn.utils.clip_grad_norm_(weights, 1e9)  # whoever reads gradients has them whole
        gradients = [[] if one.grad is None else one.grad.flatten().tolist() for one in weights]
        leaf = [] if script.leaf.grad is None else script.leaf.grad.flatten().tolist()
        script.leaf.grad = None
        steps.append([seen, leaf, *gradients])
        for optimizer in optimizers:
            optimizer.step()
    return steps


def _batches(composition: Composition) -> Any:
    num_samples = composition.num_samples
    generator = torch.Generator().manual_seed(5)
    x, z = (torch.randn(2, num_samples, WIDTH, generator=generator) for _ in range(2))
    if not composition.is_loaded:
        return list(zip(x, z, strict=True))[: composition.num_steps]
    num_rows = num_samples + (num_samples + 1) // 2 * (composition.num_steps - 1)  # the last batch is smaller
    dataset = torch.utils.data.TensorDataset(x.flatten(0, 1)[:num_rows], z.flatten(0, 1)[:num_rows])
    return torch.utils.data.DataLoader(dataset, batch_size=num_samples)


def _losses(script: Script, composition: Composition, x: Any, z: Any) -> list[Any]:
    script.extra = []
    pool = [z, x]
    for name, first, second in composition.operations:
        pool.append(OPERATIONS[name](script, _taken(pool, first), _taken(pool, second)))
    losses = [LOSSES[name](script, _taken(pool, first), _taken(pool, second))
              for name, first, second in composition.losses]  # fmt: skip
    return losses + script.extra


def _taken(pool: list[Any], place: int) -> Any:
    return pool[-1 - place % len(pool)]


def serve(folder: str) -> int:
    """Train the compositions that come, as a rank of a scaled run; return how many."""
    import torch.distributed as dist

    from echelon.orders.scale import ScaleOptions
    from echelon.train import hooks
    from echelon.train.run import Run
    from echelon.train.wire.world import World

    torch.set_default_dtype(torch.float64)
    world = World(dist.get_rank(), dist.get_world_size(), torch.device("cpu"))
    run = Run(world, is_hooked=True, options=ScaleOptions(checks_first_step=False))
    hooks.install(run)
    place = f"{folder}/{world.size}-{world.rank}"
    num_trained = 0
    with open(f"{place}-asked", "rb") as asked, open(f"{place}-answer", "wb") as answer:
        while (composition := _next(asked)) is not None:
            faulthandler.dump_traceback_later(SECONDS_OF_ONE, exit=True)
            pickle.dump(_trained(run, composition), answer)
            answer.flush()
            faulthandler.cancel_dump_traceback_later()
            num_trained += 1
    return num_trained


def _next(asked: BinaryIO) -> Composition | None:
    try:
        composition: Composition = pickle.load(asked)
    except EOFError:
        return None
    return composition


def _trained(run: Any, composition: Composition) -> tuple[str, Any]:
    """Return "equal" with what was computed, "refused" with the reason, or "failed" with the error."""
    import traceback

    from echelon.train.scaling_error import ScalingError

    run.parallelism = run.new_parallelism()
    run.calls = run.parallelism.kind_of_calls(run)
    run._loops.clear()
    run.has_begun = run.draws.is_on = True
    try:
        return "computed", train(composition)
    except ScalingError as refusal:
        return "refused", str(refusal).partition("\n")[0]
    except Exception:  # noqa: BLE001  (the test shows it)
        return "failed", traceback.format_exc()


def pipes(folder: str, sizes: tuple[int, ...]) -> None:
    """Make the pipes through which ranks are asked and answer."""
    for size in sizes:
        for rank in range(size):
            for way in ("asked", "answer"):
                os.mkfifo(f"{folder}/{size}-{rank}-{way}")
