"""Spikes in a stream of losses: a batch that is far outside is found, and a healthy training has none."""

import random
from collections.abc import Callable, Iterator

import pytest

from echelon.train.measuring.spikes import AFTER, WINDOW, Spikes

NUM_STEPS = 2000


def found(losses: "Iterator[float] | list[float]") -> "list[int]":
    """Return the steps of the spikes."""
    spikes: Spikes[int] = Spikes()
    seen = (spikes.look(loss, step) for step, loss in enumerate(losses))
    return [spike.about for spike in seen if spike is not None]


def falling(chance: random.Random, noise: float = 0.1) -> "list[float]":
    return [(2.3 * 0.998**step + 0.05) * (1 + noise * chance.gauss(0, 1)) for step in range(NUM_STEPS)]


@pytest.mark.parametrize("seed", range(5))
def test_mislabelled_batch(seed: int) -> None:
    losses = falling(random.Random(seed))
    losses[1500] = 6.0
    assert found(losses) == [1500]


def test_spike_over_some_steps_is_told_once() -> None:
    losses = falling(random.Random(0))
    losses[1500:1504] = [6.0, 5.0, 3.0, 2.0]
    assert found(losses) == [1500]


def test_spike_at_the_end_is_not_known_yet() -> None:
    """Whether the training goes on as before shows in the steps behind."""
    losses = falling(random.Random(0))[: WINDOW + 200]
    assert found([*losses, 60.0, *losses[-AFTER + 1 :]]) == []
    assert found([*losses, 60.0, *losses[-AFTER:]]) == [len(losses)]


def trained(loss_of: Callable[[int], object], *, lr: float = 0.05) -> "Iterator[float]":
    """Yield the losses of a training."""
    import torch

    optimizer: torch.optim.Optimizer | None = None
    for step in range(NUM_STEPS):
        loss, parameters = loss_of(step)  # type: ignore[misc]
        optimizer = optimizer or torch.optim.SGD(parameters, lr=lr)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        yield loss.item()


def single_samples(hinge: bool) -> Callable[[int], object]:
    import torch
    from torch.nn import functional

    torch.manual_seed(0)
    x = torch.randn(500, 4)
    y = ((x[:, 0] + 0.3 * torch.randn(500)) > 0).float()
    model = torch.nn.Linear(4, 1)

    def loss_of(step: int) -> object:
        row = slice(step % 500, step % 500 + 1)
        score = model(x[row])[:, 0]
        if hinge:
            return functional.relu(1 - score * (2 * y[row] - 1)).mean(), model.parameters()
        return functional.binary_cross_entropy_with_logits(score, y[row]), model.parameters()

    return loss_of


def adversarial() -> "Iterator[float]":
    import torch
    from torch.nn import functional

    torch.manual_seed(0)
    maker, judge = (
        torch.nn.Linear(2, 2),
        torch.nn.Sequential(torch.nn.Linear(2, 8), torch.nn.ReLU(), torch.nn.Linear(8, 1)),
    )
    optimizers = [torch.optim.Adam(each.parameters(), lr=0.01) for each in (judge, maker)]
    loss_of, ones, zeros = functional.binary_cross_entropy_with_logits, torch.ones(8, 1), torch.zeros(8, 1)
    for step in range(NUM_STEPS):
        fake = maker(torch.randn(8, 2))
        real = torch.randn(8, 2) + 3
        of_judge = loss_of(judge(real), ones) + loss_of(judge(fake.detach()), zeros)
        loss = loss_of(judge(fake), ones) if step % 2 else of_judge
        optimizers[step % 2].zero_grad()
        loss.backward()
        optimizers[step % 2].step()
        yield loss.item()


def warmed_up(chance: random.Random) -> "list[float]":
    """Return losses that rise in the warm-up before they fall."""
    return [2.3 + 2 * min(step, 100) / 100 + 0.2 * chance.gauss(0, 1) for step in range(200)] + falling(chance)


def of_curriculum(chance: random.Random) -> "list[float]":
    """Return losses of tasks that become harder at once, each learnt to the end."""
    return [abs(2.3 * 0.98 ** (step % 400) + 0.01 * chance.gauss(0, 1)) for step in range(NUM_STEPS)]


HEALTHY: "dict[str, Callable[[], Iterator[float] | list[float]]]" = {
    "noise": lambda: falling(random.Random(1), noise=0.5),
    "heavy tails": lambda: [random.Random(step).lognormvariate(0, 1) for step in range(NUM_STEPS)],
    "warm-up": lambda: warmed_up(random.Random(2)),
    "curriculum": lambda: of_curriculum(random.Random(3)),
    "single samples": lambda: trained(single_samples(hinge=False)),
    "hinge": lambda: trained(single_samples(hinge=True)),
    "adversarial": adversarial,
    "two losses": lambda: [100 * loss if step % 2 else loss for step, loss in enumerate(falling(random.Random(4)))],
    "rising": lambda: [0.001 * step for step in range(NUM_STEPS)],
    "zeros": lambda: [0.0] * 500 + [0.3, *[0.0] * 500],
    "diverging": lambda: [1.02**step for step in range(NUM_STEPS)],
    "overfitted": lambda: (
        [2.0 * 0.99**step for step in range(1500)] + [1e-5 if step % 100 else 1e-3 for step in range(500)]
    ),
}


@pytest.mark.parametrize("stream", HEALTHY)
def test_healthy_training_has_no_spike(stream: str) -> None:
    assert found(HEALTHY[stream]()) == []
