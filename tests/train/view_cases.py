"""Expressions over a batch, each computed from views by several ranks and from the whole by every one of them."""

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

from echelon.train import batches
from echelon.train.global_tensors import derivatives, rules
from echelon.train.global_tensors.tensors import GlobalTensor, Sharded, plain
from echelon.train.wire.world import World

Case = Callable[..., Any]


# x (B, 6) and z (B, 6) need gradients, s (B, 4, 6) too; y (B,) are classes of 6, t (B, 4) tokens of 6, m (B,) a mask;
# w (6, 3) is a weight, v (6,) a vector, both the same on all ranks, and n is B.
class Reverse(torch.autograd.Function):
    """What passes as it is, and turns gradients round."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, factor: float) -> torch.Tensor:
        """Return the same."""
        ctx.factor = factor
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        """Return the opposite."""
        return gradients[0] * -ctx.factor, None


ELEMENTS: dict[str, Case] = {
    "add": lambda x, z, **_: x + z,
    "number first": lambda x, **_: 2 - x,
    "divide a number": lambda x, **_: 1.5 / (x.abs() + 1),
    "vector": lambda x, v, **_: x * v,
    "column": lambda x, y, **_: x * y[:, None],
    "whole rows": lambda x, n, **_: x + torch.arange(n * 6.0).view(n, 6),
    "pairs by accident": lambda x, y, **_: x.sum(1) - y.float()[:, None],
    "in place": lambda x, z, **_: x.clone().mul_(z).add_(1),
    "in place operator": lambda x, z, **_: _iadd(x.clone(), z),
    "whole changed by rows": lambda x, n, **_: torch.zeros(n, 6).add_(x),
    "where": lambda x, z, **_: torch.where(x > 0, x, z),
    "clamp": lambda x, v, **_: x.clamp(min=-0.5).clamp(max=v.abs()),
    "activations": lambda x, **_: F.gelu(x) + F.relu(x) + torch.sigmoid(x) + F.softplus(x) + x.tanh(),
    "compare": lambda x, z, **_: (x > z).float() + (x == z).long(),
    "logic": lambda x, z, **_: ((x > 0) & (z > 0)) | ~(x > z),
    "convert": lambda x, **_: x.double().to(torch.float32).contiguous(),
    "like": lambda x, **_: torch.zeros_like(x) + torch.ones_like(x) * 3,
    "lerp": lambda x, z, **_: torch.lerp(x, z, 0.3),
    "places": lambda x, **_: torch.where(x > 0)[0] + (x > 0).nonzero()[:, 0],
    "round a mean": lambda x, **_: (x.mean() * 100).to(torch.long) + (x.sum() * 10).int(),
    "power": lambda x, **_: x**2 + 2**x,
    "own function": lambda x, w, **_: Reverse.apply(x, 0.5) @ w,
    "masked fill": lambda x, z, **_: x.masked_fill(z > 0, 0.0),
}
ALONG: dict[str, Case] = {
    "sum": lambda x, **_: x.sum(),
    "sum of rows": lambda x, **_: x.sum(1),
    "sum over rows": lambda x, **_: x.sum(0),
    "sum keeps": lambda x, **_: x.sum(0, keepdim=True) + x.sum(-1, True),
    "mean": lambda x, **_: x.mean(),
    "mean of dims": lambda s, **_: s.mean((0, 1)) + s.mean(dim=[1, 2]).sum(),
    "mean of some rows": lambda x, m, **_: x[m].mean(),
    "std": lambda x, **_: x.std(dim=1) + x.var(1, unbiased=False),
    "std over rows": lambda x, **_: x.std(0) + x.std(),
    "max": lambda x, **_: x.max(1).values + x.max() + x.amax(-1),
    "max of two": lambda x, z, **_: torch.max(x, z),
    "argmax": lambda x, **_: x.argmax(1) + x.argmax(dim=-1),
    "softmax": lambda x, s, **_: torch.softmax(x, 1).sum() + F.log_softmax(s, dim=-1).mean(),
    "softmax over rows": lambda x, **_: x.softmax(0),
    "norm": lambda x, **_: x.norm(dim=1) + x.norm(),
    "normalize": lambda x, **_: F.normalize(x, dim=1) + F.normalize(x),
    "cosine": lambda x, z, **_: F.cosine_similarity(x, z),
    "cosine of pairs": lambda x, **_: F.cosine_similarity(x.unsqueeze(1), x.unsqueeze(0), dim=2),
    "topk": lambda x, **_: x.topk(3, dim=1).values,
    "sort": lambda x, **_: x.sort(1)[0] + x.sort(0)[0],
    "gather": lambda x, y, **_: x.gather(1, y[:, None]),
    "cumsum": lambda s, **_: s.cumsum(1) + s.cumsum(0),
    "any": lambda x, **_: (x > 1).any(1).sum() + (x > 9).any() + (x > -9).all(),
    "logsumexp": lambda x, **_: x.logsumexp(1) + x.logsumexp(0).sum(),
    "flip": lambda x, **_: x.flip(1) + x.flip(0) + x.flip(1, 0) + torch.flip(x, (0, 1)),
    "roll": lambda x, **_: x.roll(1) + x.roll(1, 1) + torch.roll(x, (1, 2), (0, 1)),
    "split": lambda x, **_: torch.cat(x.split(2, dim=1)[::-1], 1) + torch.cat(x.chunk(2)[::-1]).sum(),
    "count": lambda x, **_: torch.count_nonzero(x > 0) + (x > 0).sum(1).float().mean(),
}
SHAPES: dict[str, Case] = {
    "flatten": lambda s, **_: s.flatten(1) + s.view(s.size(0), -1),
    "rows of tokens": lambda s, **_: s.view(-1, 6) * 2,
    "rows back": lambda s, n, **_: s.reshape(-1, 6).view(n, 4, 6),
    "flat": lambda x, **_: x.flatten() + x.reshape(-1),
    "half rows": lambda s, **_: s.view(-1, 2, 12),
    "transpose": lambda s, **_: s.transpose(1, 2) + s.permute(0, 2, 1),
    "transpose rows": lambda s, **_: s.transpose(0, 1) * 1.0,
    "repeat": lambda x, **_: x.repeat(2, 1) + x.repeat_interleave(2, dim=0),
    "repeat columns": lambda x, **_: x.repeat(1, 2) + x.repeat_interleave(2, dim=1),
    "T": lambda x, **_: x.T @ x,
    "mT": lambda s, **_: s @ s.mT,
    "squeeze": lambda x, **_: x.unsqueeze(1).squeeze(1) + x[:, :1].squeeze().sum(),
    "columns": lambda x, s, **_: x[:, 1:4] + x[..., :3] + s[:, -1, :3] + x[:, None, 0],
    "rows": lambda x, **_: x[1:3] * x[0] + x[-1],
    "picked": lambda x, y, n, **_: x[torch.arange(n), y],
    "shuffled": lambda x, n, **_: x[torch.arange(n - 1, -1, -1)],
    "mask": lambda x, m, **_: x[m] ** 2,
    "mask of tokens": lambda s, t, **_: F.cross_entropy(s[t > 2], t[t > 2]),
    "set columns": lambda x, **_: _set(x.clone(), (slice(None), 0), 0.0),
    "set rows": lambda x, **_: _set(x.clone(), 1, 0.0),
    "set through another view": lambda s, **_: _set_other(s.clone(), (slice(3), 1), 0.5),
    "set tokens through another view": lambda t, **_: _set_other(t.clone(), (slice(3), 1), -1),
    "stack": lambda x, z, **_: torch.stack([x, z], 1) + torch.stack([x, z]).sum(),
    "cat": lambda x, z, **_: torch.cat([x, z], dim=1),
    "cat rows": lambda x, z, **_: torch.cat([x, z]),
    "iterate": lambda x, **_: sum(row.sum() * place for place, row in enumerate(x)),
    "expand": lambda y, n, **_: y[:, None].expand(n, 6).float() + y.view(-1, 1).repeat(1, 6),
    "one hot": lambda y, **_: F.one_hot(y, 6) + F.one_hot(y, num_classes=6),
    "one hot of the largest": lambda y, **_: F.one_hot(y),
    "matrix": lambda x, w, **_: x @ w + F.linear(x, w.T) + torch.mm(x, w),
    "bmm": lambda s, **_: torch.bmm(s, s.transpose(1, 2)),
    "einsum": lambda x, w, **_: torch.einsum("bi,ij->bj", x, w),
    "similarities": lambda x, **_: F.normalize(x) @ F.normalize(x).T,
    "layer norm": lambda x, v, **_: F.layer_norm(x, (6,), v),
    "embedding": lambda y, w, **_: F.embedding(y, w),
    "cdist": lambda x, z, **_: torch.cdist(x, z),
}
LOSSES: dict[str, Case] = {
    "cross entropy": lambda x, y, **_: F.cross_entropy(x, y),
    "sum of cross entropy": lambda x, y, **_: F.cross_entropy(x, y, reduction="sum"),
    "each cross entropy": lambda x, y, **_: F.cross_entropy(x, y, reduction="none") * y,
    "class weights": lambda x, y, v, **_: F.cross_entropy(x, y, weight=v.detach().abs()),
    "as many classes as samples": lambda x, y, v, n, **_: F.cross_entropy(
        torch.linspace(0, 1, n * n).view(n, n) * v[0], y % n, weight=torch.linspace(1, 2, n)
    ),
    "ignored": lambda x, y, **_: F.cross_entropy(x, y, ignore_index=1),
    "ignored by sign": lambda s, t, **_: F.cross_entropy(s.view(-1, 6), torch.where(t > 2, t, -100).view(-1)),
    "smooth": lambda x, y, v, **_: F.cross_entropy(x, y, v.detach().abs(), ignore_index=0, label_smoothing=0.1),
    "probabilities": lambda x, z, **_: F.cross_entropy(x, z.softmax(1)),
    "images": lambda s, t, **_: F.cross_entropy(s.transpose(1, 2), t),
    "nll": lambda x, y, **_: F.nll_loss(F.log_softmax(x, 1), y),
    "module": lambda x, y, **_: nn.CrossEntropyLoss()(x, y) + nn.MSELoss()(x, x * 2),
    "mse": lambda x, z, **_: F.mse_loss(x, z) + F.mse_loss(x, torch.zeros_like(z)),
    "mse of whole targets": lambda x, n, **_: F.mse_loss(x, torch.ones(n, 6)),
    "others": lambda x, z, **_: F.l1_loss(x, z) + F.smooth_l1_loss(x, z) + F.huber_loss(x, z, reduction="sum"),
    "binary": lambda x, m, v, **_: (
        F.binary_cross_entropy_with_logits(x[:, 0], m.float())
        + F.binary_cross_entropy(x.sigmoid(), (x > 0).float(), weight=v.detach().abs())
    ),
    "positive": lambda x, v, **_: F.binary_cross_entropy_with_logits(x, (x > 0).float(), pos_weight=v.detach().abs()),
    "divergence": lambda x, z, **_: (
        F.kl_div(F.log_softmax(x, 1), z.softmax(1), reduction="batchmean")
        + F.kl_div(F.log_softmax(x, 1), F.log_softmax(z, 1), reduction="sum", log_target=True)
    ),
    "triplet": lambda x, z, s, **_: F.triplet_margin_loss(x, z, s[:, 0]),
    "embedding": lambda x, z, m, **_: F.cosine_embedding_loss(x, z, m.float() * 2 - 1),
    "likelihood": lambda x, z, **_: F.gaussian_nll_loss(x, z, z.exp()) + F.poisson_nll_loss(x, z.exp()),
    "token mean": lambda s, t, **_: (s.sum(-1) * (t > 1)).sum() / (t > 1).sum(),
    "masked mean": lambda x, m, **_: F.mse_loss(x[m], x[m] * 2),
    "sum of several": lambda x, z, w, **_: x.mean() + 0.1 * z.pow(2).sum() - (x @ w).std() + 1e-3 * w.pow(2).sum(),
    "product": lambda x, z, **_: x.mean() * z.sum() + x.sum() / 7 + torch.exp(z.mean()),
    "list of losses": lambda x, z, **_: torch.stack([x.mean(), z.sum()]).mean() + sum([x.mean(), z.mean()]),
    "contrastive": lambda x, z, n, **_: F.cross_entropy(F.normalize(x) @ F.normalize(z).T / 0.1, torch.arange(n)),
    "covariance": lambda x, **_: ((x - x.mean(0)).T @ (x - x.mean(0)) / (x.size(0) - 1)).pow(2).sum(),
    "kept": lambda x, **_: x.mean().detach() * x.sum(),
}
READS: dict[str, Case] = {
    "item": lambda x, **_: x.sum().item(),
    "list": lambda x, **_: x[:, 0].tolist() + x.sum(0).tolist(),
    "format": lambda x, **_: f"{x.detach().mean():.3f} {x.mean().item():.4f}",
    "float": lambda x, **_: float(x.detach().mean()) + int((x > 0).sum()),
    "bool": lambda x, **_: bool(x.mean() > 100) or bool((x > -100).all()),
    "numpy": lambda x, **_: x.detach().numpy().sum().item(),
    "sizes": lambda x, s, **_: [len(x), *x.shape, s.size(0), s.numel(), x.dim(), x.ndim, *s.view(-1, 6).shape],
    "decide": lambda x, z, **_: "less" if x.mean() < z.mean() else "more",
    "hits": lambda x, y, **_: (x.argmax(1) == y).sum().item() / y.size(0) + (x.argmax(1) == y).float().mean().item(),
    "kind": lambda x, **_: [str(x.dtype), str(x.device), x.requires_grad, isinstance(x, torch.Tensor)],
    "zip": lambda x, y, **_: [
        round(float(row.detach().sum()), 4) + int(label) for row, label in zip(x, y, strict=True)
    ],
    "equal": lambda x, z, **_: torch.equal(x, z) or not torch.allclose(x, x + 0),
}
GROUPS = {"elements": ELEMENTS, "along": ALONG, "shapes": SHAPES, "losses": LOSSES, "reads": READS}
CASES = {f"{group}: {name}": case for group, cases in GROUPS.items() for name, case in cases.items()}


def _iadd(x: Any, z: Any) -> Any:
    x += z
    x /= 2
    return x


def _set_other(x: torch.Tensor, key: Any, value: float) -> Any:
    flat = x.view(-1, x.shape[-1]) if x.dim() > 2 else x.view(-1)
    x[key] = value
    return flat


def _set(x: Any, key: Any, value: float) -> Any:
    x[key] = value
    return x


def inputs(num_samples: int) -> dict[str, Any]:
    """Return the whole batch, the same on every rank."""
    torch.manual_seed(num_samples)
    made: dict[str, Any] = {name: torch.randn(num_samples, 6, requires_grad=True) for name in "xz"}
    made["s"] = torch.randn(num_samples, 4, 6, requires_grad=True)
    made["y"] = torch.randint(6, (num_samples,))
    made["t"] = torch.randint(6, (num_samples, 4))
    made["m"] = torch.arange(num_samples) % 3 != 1
    return made


def compare(case: Case, world: World, num_samples: int) -> str:
    """Return how what is computed from views differs from what is computed from the whole."""
    whole, shared = inputs(num_samples), inputs(num_samples)
    rows = batches.rows_of(num_samples, world.size)
    leaves = {name: tensor for name, tensor in shared.items() if tensor.requires_grad}
    views = {name: Sharded(batches.own_part(tensor, world.rank, rows), world, rows) for name, tensor in shared.items()}
    weights = [{"w": torch.linspace(-1, 1, 18).view(6, 3), "v": torch.linspace(-1, 1.5, 6)} for _ in range(2)]
    for each in weights:
        for one in each.values():
            one.requires_grad_()
    expected = case(**whole, **weights[0], n=num_samples)
    found = case(**views, **weights[1], n=num_samples)
    if not isinstance(expected, torch.Tensor):
        is_near = found == expected if not isinstance(expected, float) else abs(found - expected) <= 1e-5
        return "" if is_near or _are_near(found, expected) else f"{found!r}, not {expected!r}"
    if tuple(found.shape) != tuple(expected.shape) or found.dtype != expected.dtype:
        return f"{tuple(found.shape)} {found.dtype}, not {tuple(expected.shape)} {expected.dtype}"
    if not torch.allclose(plain(found).double(), expected.detach().double(), rtol=1e-5, atol=1e-6):
        return f"{plain(found)}, not {expected.detach()}"
    return _compare_gradients(expected, found, [*whole.values(), *weights[0].values()],
                              [*leaves.values(), *weights[1].values()], world)  # fmt: skip


def _compare_gradients(expected: Any, found: Any, whole: list[Any], shared: list[Any], world: World) -> str:
    if not expected.requires_grad:
        return "" if not found.requires_grad else "it needs a gradient"
    expected.pow(2).sum().backward()
    loss = found.pow(2).sum()
    loss = loss.whole() if isinstance(loss, GlobalTensor) else loss
    loss.backward()
    for one, other in zip([one for one in whole if one.requires_grad], shared, strict=True):
        gradient = torch.zeros_like(other) if other.grad is None else other.grad
        dist.all_reduce(gradient)
        gradient /= world.size
        reference = torch.zeros_like(one) if one.grad is None else one.grad
        if not torch.allclose(gradient, reference, rtol=1e-4, atol=1e-5):
            return f"the gradient is {gradient.flatten()[:4]}, not {reference.flatten()[:4]}"
    return ""


def _are_near(found: Any, expected: Any) -> bool:
    if not isinstance(expected, list):
        return False
    return all(
        one == other or (isinstance(one, float) and abs(one - other) < 1e-3)
        for one, other in zip(found, expected, strict=True)
    )


def differences(num_samples: int) -> list[str]:
    """Return the name and the difference of each case that differs on this rank."""
    rules.install()
    derivatives.install_functions()
    world = World(dist.get_rank(), dist.get_world_size(), torch.device("cpu"))
    found = []
    for name, case in CASES.items():
        try:
            difference = compare(case, world, num_samples)
        except Exception as error:  # noqa: BLE001
            difference = f"{type(error).__name__}: {error}"
        if difference:
            found.append(f"{name}: {difference}".replace("\n", " "))
    return found
