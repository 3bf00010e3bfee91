"""Models that draw, mix samples, train inside of themselves or take lists: what each gives on several ranks.

`outcomes` is what a rank does: it trains each case, without any check, and returns the losses, or the refusal.
"""

import random
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

EQUAL = ""
NUM_SAMPLES = 10


class Net(nn.Module):
    """Two layers; a case says how they are used."""

    def __init__(self, how: Any) -> None:
        super().__init__()
        self.a, self.b, self.how = nn.Linear(6, 8), nn.Linear(8, 3), how
        self.attention, self.cell = nn.MultiheadAttention(8, 2), nn.GRU(8, 8)
        self.rng = np.random.default_rng(3)
        self.generator = torch.Generator().manual_seed(5)
        self.register_buffer("mean", torch.zeros(6))
        self.centre, self.queue, self.num_calls = torch.zeros(8), [], 0
        self.optimizer = torch.optim.SGD([*self.a.parameters(), *self.b.parameters()], lr=0.1)

    def forward(self, x: Any, y: Any = None) -> Any:
        """Return a loss, or outputs for each sample."""
        return self.how(self, x, y)


class _Scaled(torch.autograd.Function):
    """Gives the gradient of the whole batch a norm."""

    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        return 0.5 * gradient / gradient.norm()


class _Clamped(_Scaled):
    """Clamps each number of a gradient."""

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        return gradient.clamp(-0.01, 0.01)


class _Reversed(_Scaled):
    """Reverses a gradient."""

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        return -0.3 * gradient


def _hooked(n: Net, x: Any, change: Any) -> Any:
    z = n.a(x)
    if z.requires_grad:
        z.register_hook(change)
    return n.b(z)


class Graph:
    """A sample with its own size."""

    def __init__(self, x: Any) -> None:
        self.x = x


def _multinomial(n: Net, x: Any, _: Any) -> Any:
    bad = torch.multinomial(torch.arange(1.0, 7.0), len(x) * 2, replacement=True).view(-1, 2)
    return n.b(n.a(x + x.gather(1, bad).mean(1, keepdim=True)))


def _contrastive(n: Net, x: Any, _: Any) -> Any:
    z = F.normalize(n.a(x))
    return F.cross_entropy(z @ z.T * 2, torch.arange(len(x)).roll(1))


def _by_pairs(n: Net, x: Any, y: Any) -> Any:
    z, loss = n.b(n.a(x)), 0.0
    for i in range(len(x)):
        for j in range(i):
            loss = loss + ((z[i] - z[j]) ** 2).mean() * (1 if y[i] == y[j] else -0.1)
    return loss / len(x)


def _steps_inside(n: Net, x: Any, y: Any) -> Any:
    loss = F.cross_entropy(n.b(n.a(x)), y)
    n.optimizer.zero_grad()
    loss.backward()
    n.optimizer.step()
    return loss


def _fast_weights(n: Net, x: Any, y: Any) -> Any:
    weights = list(n.a.parameters())
    gradients = torch.autograd.grad(F.cross_entropy(n.b(n.a(x)), y), weights, create_graph=True)
    fast = [weight - 0.1 * gradient for weight, gradient in zip(weights, gradients, strict=True)]
    return F.cross_entropy(n.b(F.linear(x, *fast)), y)


def _running(n: Net, x: Any, _: Any) -> Any:
    n.mean = n.mean.mul_(0.9).add_(0.1 * x.mean(0))
    return n.b(n.a(x - n.mean))


def _centre(n: Net, x: Any, _: Any) -> Any:
    z = n.a(x)
    outputs = n.b(z - n.centre)
    n.centre = 0.9 * n.centre + z.detach().mean(0)
    return outputs


def _queue(n: Net, x: Any, y: Any) -> Any:
    z = n.a(x)
    far = (z @ torch.cat(n.queue).T).logsumexp(1).mean() if n.queue else 0.0
    n.queue.append(z.detach())
    return F.cross_entropy(n.b(z), y) + far


def _told_of(n: Net, x: Any, _: Any) -> Any:
    n.num_calls += 1
    z = n.a(x) + torch.rand(len(x), 8) / n.num_calls
    n.largest = z.detach().max()
    return n.b(z)


def _attention(n: Net, x: Any, _: Any) -> Any:
    h = torch.as_tensor(x) @ n.a.weight.T
    h = torch.stack([h, 2 * h])  # time, batch
    return n.b(n.attention(h, h, h, need_weights=False)[0][0])


def _pooled(n: Net, graphs: Any, _: Any) -> Any:
    x, sizes = torch.cat([one.x for one in graphs]), [len(one.x) for one in graphs]
    rows = torch.repeat_interleave(torch.arange(len(sizes)), torch.tensor(sizes))
    pool = torch.sparse_coo_tensor(torch.stack([rows, torch.arange(len(rows))]), torch.ones(len(rows)),
                                   (len(sizes), len(rows)), check_invariants=True)  # fmt: skip
    return n.b(torch.sparse.mm(pool, n.a(x)))


def _numpy_noise(n: Net, x: Any, _: Any) -> Any:
    return n.b(n.a(x) + torch.as_tensor(np.random.randn(len(x), 8), dtype=torch.float32))


def _coins(n: Net, x: Any, _: Any) -> Any:
    h = n.a(x) * float(n.rng.random()) * float(np.random.rand())
    return n.b(h.tanh() if random.random() < 0.5 else h)


def _masked(n: Net, x: Any, y: Any) -> Any:
    keep = (y > 0).float()
    return (F.cross_entropy(n.b(n.a(x)), y, reduction="none") * keep).sum() / keep.sum()


def _far_apart(n: Net, x: Any, y: Any) -> Any:
    z = n.a(x)
    return F.cross_entropy(n.b(z), y) + torch.relu(0.05 - torch.pdist(z)).mean()  # no two samples are so near


def _other_ways(n: Net, x: Any, y: Any) -> Any:
    z = n.a(x)
    cosines = F.cosine_similarity(z[:, None], z[None], dim=2)[(y[:, None] != y[None])]
    return F.cross_entropy(n.b(z), y) + torch.relu(cosines - 0.999).sum() / len(x)


def _plain(n: Net, x: Any, _: Any) -> Any:
    return n.b(n.a(torch.as_tensor(x)))


BACKWARD = "Net has other gradients for a part of its batch, by "
MIXES = "Net mixes the samples of its batch in "
AFTER = "Net mixes the samples of its batch in its next call, after this one has changed "
DRAWS = "Net draws numbers for each of its samples at "
CASES: dict[str, tuple[Any, Any, str]] = {
    "one distribution": (_multinomial, None, EQUAL),
    "indices": (lambda n, x, y: n.b(n.a(x * torch.randint(0, 3, (len(x) * 6,)).view(-1, 6))), None, EQUAL),
    "as long as a part": (lambda n, x, y: n.b(n.a(x) * torch.rand(5)[:1]), None, EQUAL),
    "features": (lambda n, x, y: n.b(n.a(x)[:, torch.randperm(8)]), None, EQUAL),
    "own generator": (lambda n, x, y: n.b(n.a(x) + torch.randn(len(x), 8, generator=n.generator)), None, EQUAL),
    "coins": (_coins, None, EQUAL),
    "order": (lambda n, x, y: n.b(n.a(x + x[torch.randperm(len(x))])), None, "by torch.randperm()"),
    "numpy": (_numpy_noise, None, DRAWS),
    "random": (lambda n, x, y: n.b(n.a(x) * torch.tensor([[random.random()] for _ in x])), None, DRAWS),
    "of each": (lambda n, x, y: n.b(n.a(torch.stack([one + torch.randn(6) for one in x]))), None, DRAWS),
    "contrastive": (_contrastive, None, MIXES + "mm()"),
    "pairs by hand": (_by_pairs, None, MIXES),
    "margin of distances": (_far_apart, None, MIXES + "mean()"),
    "margin of angles": (_other_ways, None, MIXES),
    "hardest": (lambda n, x, y: F.cross_entropy(n.b(n.a(x)), y, reduction="none").topk(3)[0].mean(), None,
                MIXES + "topk()"),
    "three rows or more": (lambda n, x, y: n.b(n.a(x) + 0 * x.unfold(0, 3, 1).sum()), None, EQUAL),
    "gradients of a norm": (lambda n, x, y: n.b(_Scaled.apply(n.a(x))), None, BACKWARD + "backward() of _Scaled"),
    "clamped gradients": (lambda n, x, y: F.cross_entropy(n.b(_Clamped.apply(n.a(x))), y), None, BACKWARD),
    "hook with a maximum": (lambda n, x, y: _hooked(n, x, lambda g: 0.01 * g / g.abs().max()), None,
                            BACKWARD + "a hook of a gradient, at "),
    "reversed gradients": (lambda n, x, y: F.cross_entropy(n.b(_Reversed.apply(n.a(x))), y), None, EQUAL),
    "hook of each number": (lambda n, x, y: _hooked(n, x, lambda g: 2 * g), None, EQUAL),
    "diagonal of pairs": (lambda n, x, y: (n.a(x) @ n.a(x).tanh().T).diag().mean(), None, EQUAL),
    "clamped": (lambda n, x, y: F.hinge_embedding_loss(n.b(n.a(x))[:, 0], 2.0 * (y > 0) - 1), None, EQUAL),
    "log of probabilities": (lambda n, x, y: F.nll_loss(n.b(n.a(x)).softmax(1).log(), y), None, EQUAL),
    "centred": (lambda n, x, y: n.b(n.a(x - x.mean(0))), None, MIXES + "sub()"),
    "deviation": (lambda n, x, y: n.a(x).std(0).mean(), None, MIXES + "std()"),
    "sorted": (lambda n, x, y: n.b(n.a(x).sort(0).values), None, MIXES + "sort()"),
    "running sum": (lambda n, x, y: n.b(n.a(x).cumsum(0)), None, MIXES + "cumsum()"),
    "root of a mean": (lambda n, x, y: F.mse_loss(n.b(n.a(x)).sum(1), y.float()).sqrt(), None, MIXES + "sqrt()"),
    "mean of some": (_masked, None, MIXES + "div()"),
    "mean": (lambda n, x, y: F.cross_entropy(n.b(n.a(x)), y), None, EQUAL),
    "sum": (lambda n, x, y: F.cross_entropy(n.b(n.a(x)), y, reduction="sum"), None, EQUAL),
    "ignored": (lambda n, x, y: F.cross_entropy(n.b(n.a(x)), y.masked_fill(y == 0, -100)), None, EQUAL),
    "steps inside": (_steps_inside, None, EQUAL),
    "fast weights": (_fast_weights, None, MIXES),
    "running mean": (_running, None, "changes its buffer Net.mean with the samples"),
    "kept for the next call": (_centre, None, AFTER + "Net.centre"),
    "queue": (_queue, None, AFTER + "Net.queue"),
    "kept for a look": (_told_of, None, EQUAL),
    "time first inside": (lambda n, x, y: n.b(n.cell(torch.stack([n.a(x)] * 3))[0][-1]), None, EQUAL),
    "time first": (lambda n, x, y: n.b(n.cell(n.a(x)[:, None])[0][:, 0]), None, "its batch dimension is dim 1: "),
    "arrays": (_plain, lambda x: x.numpy(), EQUAL),
    "array, time first inside": (_attention, lambda x: x.numpy(), EQUAL),
    "graphs": (_pooled, lambda x: [Graph(one.repeat(1 + at % 3, 1)) for at, one in enumerate(x)], EQUAL),
    "list of rows": (lambda n, x, y: n.b(torch.stack([n.a(one) for one in x])), list, EQUAL),
    "list of numbers": (lambda n, x, y: n.b(n.a(torch.tensor(x))), lambda x: x.tolist(), EQUAL),
}  # fmt: skip
"""How a model computes, how its argument is made of a tensor (None for a loader's batches), and what a run says."""


def train(name: str) -> list[float]:
    """Return the losses of a few steps."""
    how, make, _ = CASES[name]
    torch.manual_seed(0)
    np.random.seed(0)
    random.seed(0)
    net = Net(how)
    x, y = torch.randn(3 * NUM_SAMPLES, 6), torch.randint(0, 3, (3 * NUM_SAMPLES,))
    dataset = torch.utils.data.TensorDataset(x, y)
    optimizer = torch.optim.Adam(net.parameters(), lr=0.02)
    losses = []
    batches: Any = torch.utils.data.DataLoader(dataset, batch_size=NUM_SAMPLES) if make is None else zip(
        x.split(NUM_SAMPLES), y.split(NUM_SAMPLES), strict=True)  # fmt: skip
    for a, b in batches:
        result = net(a if make is None else make(a), b if make is None else None)
        loss = result if result.dim() == 0 else F.cross_entropy(result, b)
        losses.append(loss.item())
        if name != "steps inside":
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    return losses


def outcomes() -> dict[str, Any]:
    """Train all cases on this rank; return for each its losses, or the refusal."""
    import torch.distributed as dist

    from echelon.orders.scale import ScaleOptions
    from echelon.train import hooks
    from echelon.train.run import Run
    from echelon.train.scaling_error import ScalingError
    from echelon.train.wire.world import World

    world = World(dist.get_rank(), dist.get_world_size(), torch.device("cpu"))
    run = Run(world, is_hooked=True, options=ScaleOptions(checks_first_step=False))
    hooks.install(run)
    told: dict[str, Any] = {}
    for name in CASES:
        run.parallelism = run.new_parallelism()
        run.calls = run.parallelism.kind_of_calls(run)
        run._loops.clear()
        run.draws.is_on = True
        try:
            told[name] = train(name)
        except ScalingError as refusal:
            told[name] = str(refusal).partition("\n")[0]
            refusal.withdraw()
    return told
