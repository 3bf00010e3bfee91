"""Draw as each of three ranks inside of a model, and compare with one device; a program, for it patches PyTorch."""

import sys
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from echelon.train.rng import draw_hooks as draws
from echelon.train.rng import draws as rng
from echelon.train.rng.draws import Draws
from echelon.train.rng.generators import Generators
from echelon.train.wire import exchange
from echelon.train.wire.world import World

ROWS = ((4, 4, 4), (3, 3, 2), (1, 1, 0), (1, 1, 1))
Case = Callable[[torch.Tensor], torch.Tensor]


def _attention(x: torch.Tensor) -> torch.Tensor:
    q = x.unflatten(1, (5, 2)).unsqueeze(1).expand(-1, 2, -1, -1)
    mask = torch.tensor([[True, False, True, True, False]] * 5)
    some = F.scaled_dot_product_attention(q, q, q, dropout_p=0.3, is_causal=True)
    return some + F.scaled_dot_product_attention(q, q + 1, q, attn_mask=mask, dropout_p=0.3, scale=0.7)


def _in_place(name: str, *arguments: Any) -> Case:
    def draw(x: torch.Tensor) -> torch.Tensor:
        filled: torch.Tensor = getattr(torch.empty_like(x), name)(*arguments)
        return filled

    return draw


CASES: dict[str, Case] = {
    "dropout": lambda x: F.dropout(x, 0.3),
    "dropout-in-place": lambda x: F.dropout(x * 1, 0.3, inplace=True),
    "dropout-module": nn.Dropout(0.4),
    "dropout-of-tokens": lambda x: F.dropout(x.unflatten(1, (5, 2)).flatten(0, 1), 0.3),
    "dropout-of-heads": lambda x: F.dropout(x.unflatten(1, (5, 2)).flatten(0, 1).unsqueeze(1).expand(-1, 6, -1), 0.3),
    "dropout-transposed": lambda x: F.dropout(x.unflatten(1, (2, 5)).transpose(1, 2) * 1, 0.3),
    "dropout-twice": lambda x: F.dropout(F.dropout(x, 0.1) + 1, 0.2),
    "dropout-of-weights": lambda x: F.linear(x, F.dropout(nn.Parameter(torch.ones(10, 10)), 0.5)),
    "torch.dropout": lambda x: torch.dropout(x, 0.3, True),
    "not-trained": lambda x: F.dropout(x, 0.3, training=False) + torch.rand(()),
    "alpha": lambda x: F.alpha_dropout(x, 0.3, True),
    "alpha-module": nn.AlphaDropout(0.3),
    "feature-alpha": lambda x: F.feature_alpha_dropout(x[:, :, None].expand(-1, -1, 4) * 1, 0.3, True),
    "dropout1d": lambda x: F.dropout1d(x[:, :, None] * torch.ones(4), 0.3),
    "dropout2d": lambda x: nn.Dropout2d(0.3)(x[:, :, None, None] * torch.ones(4, 5)),
    "dropout2d-channels-last": lambda x: nn.Dropout2d(0.3)(
        (x[:, :, None, None] * torch.ones(4, 5)).contiguous(memory_format=torch.channels_last)
    ),
    "dropout3d": lambda x: nn.Dropout3d(0.3)(x[:, :, None, None, None] * torch.ones(2, 3, 2)),
    "rand": lambda x: torch.rand(len(x), 7),
    "rand-of-a-size": lambda x: torch.rand(size=(x.size(0), 7), dtype=torch.float64),
    "randn": lambda x: torch.randn(x.shape) * x,
    "randn-for-all": lambda x: x * torch.randn(10),
    "randint": lambda x: torch.randint(0, 20, (x.shape[0],)),
    "randint-low": lambda x: torch.randint(20, size=(x.shape[0], 2)),
    "rand_like": lambda x: torch.rand_like(x),
    "randn_like": lambda x: torch.randn_like(x.unflatten(1, (2, 5)).transpose(1, 2)),
    "randint_like": lambda x: torch.randint_like(x, 3, 9),
    "normal": lambda x: torch.normal(x, x.abs()),
    "normal-of-one-std": lambda x: torch.normal(x, 2.0),
    "normal-of-one-mean": lambda x: torch.normal(1.0, x.abs()),
    "normal-size": lambda x: torch.normal(0.0, 1.0, (len(x), 20)),
    "bernoulli": lambda x: torch.bernoulli(x.sigmoid()),
    "bernoulli-method": lambda x: x.sigmoid().bernoulli(),
    "bernoulli-p": lambda x: torch.empty_like(x).bernoulli_(0.3),
    "bernoulli_-of-rows": lambda x: torch.empty_like(x).bernoulli_(x.sigmoid()),
    "multinomial": lambda x: torch.multinomial(x.softmax(1), 2),
    "multinomial-replaced": lambda x: x.softmax(1).multinomial(9, replacement=True),
    "normal_": _in_place("normal_", 1.0, 2.0),
    "uniform_": _in_place("uniform_", -1, 1),
    "exponential_": _in_place("exponential_"),
    "random_": _in_place("random_", 10),
    "cauchy_": _in_place("cauchy_"),
    "geometric_": _in_place("geometric_", 0.3),
    "log_normal_": _in_place("log_normal_"),
    "gumbel": lambda x: F.gumbel_softmax(x, hard=True),
    "attention": _attention,
    "encoder": lambda x: ENCODER(x.unflatten(1, (5, 2))),
    "Normal": lambda x: torch.distributions.Normal(x, 1.0).rsample(),
    "Uniform": lambda x: torch.distributions.Uniform(x, x + 1).rsample(),
    "Categorical": lambda x: torch.distributions.Categorical(logits=x).sample(),
    "Bernoulli": lambda x: torch.distributions.Bernoulli(logits=x).sample(),
    "Laplace": lambda x: torch.distributions.Laplace(x, 1.0).rsample(),
    "Exponential": lambda x: torch.distributions.Exponential(x.abs() + 1).rsample(),
    "Gumbel": lambda x: torch.distributions.Gumbel(x, 1.0).rsample(),
    "Poisson": lambda x: torch.distributions.Poisson(x.abs() * 9).sample(),
    "Binomial": lambda x: torch.distributions.Binomial(9, logits=x).sample(),
    "Gamma": lambda x: torch.distributions.Gamma(x.abs() + 1, 1.0).rsample(),
    "Beta": lambda x: torch.distributions.Beta(x.abs() + 1, 2.0 * torch.ones(())).rsample(),
    "Dirichlet": lambda x: torch.distributions.Dirichlet(x.abs() + 1).rsample(),
    "StudentT": lambda x: torch.distributions.StudentT(x.abs() + 3).rsample(),
    "rrelu": lambda x: F.rrelu(x, training=True),
    "rrelu-module": nn.RReLU(),
}
ENCODER = nn.TransformerEncoderLayer(2, 2, dim_feedforward=4, dropout=0.2, batch_first=True)


def computed(case: Case, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return what is drawn, the gradient of the rows, and the state of the generator afterwards."""
    torch.manual_seed(7)
    x = x.clone().requires_grad_()
    result = case(x)
    if result.requires_grad:
        (result * torch.arange(1.0, result[0].numel() + 1).view(result[0].shape)).sum().backward()
    return result.detach(), torch.zeros_like(x) if x.grad is None else x.grad, torch.get_rng_state()


def main() -> None:
    torch.manual_seed(3)
    wholes = {rows: torch.randn(sum(rows), 10) for rows in ROWS}
    expected = {(name, rows): computed(case, wholes[rows]) for name, case in CASES.items() for rows in ROWS}
    state = Draws(World(0, 3, torch.device("cpu")), Generators(0, None), print, is_on=True, takes_all=True)
    draws.install(state)
    wrong = []
    for (name, rows), (result, gradient, generator) in expected.items():
        for rank in range(3):
            own = wholes[rows].split(rows)[rank] if rows[rank] else wholes[rows][:1]
            local = own.unflatten(1, (5, 2))
            lead = SimpleNamespace(world=World(rank, 3, torch.device("cpu")), rows=rows, local=local)
            exchange.gather = _gathering(wholes[rows], rows, name)  # type: ignore[assignment]
            with state.of([lead]):
                mine = computed(CASES[name], own)
            ratio = len(result) // sum(rows)
            first, many = sum(rows[:rank]), rows[rank]
            is_same = torch.allclose(
                mine[0][: many * ratio], result[first * ratio : (first + many) * ratio], rtol=1e-4, atol=1e-6
            )
            is_same &= torch.allclose(mine[1][:many], gradient[first : first + many], rtol=1e-4, atol=1e-6)
            if not (is_same and torch.equal(mine[2], generator)):
                wrong.append(f"{name} of {rows} on rank {rank}: {is_same}")
    rng.MOST_NUMBERS = 20
    with state.of([lead]):
        F.dropout(own, 0.5)
    if state.is_on:
        wrong.append("a batch that is too large is drawn whole")
    print("\n".join(wrong) or f"{len(expected)} cases are those of one device")
    sys.exit(bool(wrong))


def _gathering(whole: torch.Tensor, rows: tuple[int, ...], name: str) -> Callable[..., torch.Tensor]:
    """Return what puts parameters together that are elementwise functions of the rows: computed of all rows."""
    parameters: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
        "Poisson": lambda x: x.abs() * 9, "rrelu": lambda x: x, "rrelu-module": lambda x: x,
        "Gamma": lambda x: x.abs() + 1, "Dirichlet": lambda x: x.abs() + 1,
        "StudentT": lambda x: 0.5 * (x.abs() + 3),
        "Beta": lambda x: torch.stack([x.abs() + 1, 2.0 * torch.ones_like(x)], -1),
    }  # fmt: skip

    def gather(own: torch.Tensor, *_: Any) -> torch.Tensor:
        if name == "Binomial":
            is_count = bool((own == own.flatten()[0]).all())
            return torch.full_like(whole, 9.0) if is_count and own.flatten()[0] == 9 else whole.sigmoid()
        return parameters[name](whole)

    return gather


if __name__ == "__main__":
    main()
