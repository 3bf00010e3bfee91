"""The first step tells rounding from mistakes."""

import pytest
import torch
from torch import nn

from echelon.train.check import first_step
from echelon.train.check.compare import bound_of, difference, norm_of
from echelon.train.scaling_error import ScalingError

SAMPLES = 64


def gradients(loss: torch.Tensor, model: nn.Module) -> list[torch.Tensor]:
    """Return what a loss gives for every weight."""
    return list(torch.autograd.grad(loss, list(model.parameters())))


def compare(model: nn.Module, ours: list[torch.Tensor], theirs: list[torch.Tensor]) -> None:
    """Compare as rank 0 does."""
    norm = norm_of(theirs)
    for parameter, one, other in zip(model.parameters(), ours, theirs, strict=True):
        difference(parameter, one, other, bound_of(parameter.dtype, SAMPLES, norm, is_half=False))


def in_parts(model: nn.Module, loss: "object", places: torch.Tensor, num_parts: int = 4) -> list[torch.Tensor]:
    """Return the mean of the gradients of parts."""
    parts = [gradients(loss(one), model) for one in places.chunk(num_parts)]  # type: ignore[operator]
    return [torch.stack(several).mean(0) for several in zip(*parts, strict=True)]


def test_bias_before_batch_norm_is_rounding() -> None:
    """The gradient is zero but for rounding; another order of sums gives other rounding."""
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(1, 16, 5, padding=2), nn.BatchNorm2d(16), nn.ReLU(), nn.Flatten(), nn.Linear(12544, 10)
    )
    x, y = torch.rand(SAMPLES, 1, 28, 28), torch.randint(10, (SAMPLES,))
    order = torch.randperm(SAMPLES)
    theirs = gradients(nn.functional.cross_entropy(model(x), y), model)
    ours = gradients(nn.functional.cross_entropy(model(x[order]), y[order]), model)
    assert float((ours[1] - theirs[1]).norm()) > 1e-3 * float(theirs[1].norm())  # it would be refused by itself
    compare(model, ours, theirs)


def test_discriminator_that_cannot_tell_is_rounding() -> None:
    """A gradient that is a small difference of large numbers differs by more than the usual, and is right."""
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(1, 32, 3, 2, 1), nn.LeakyReLU(0.2), nn.Flatten(), nn.Linear(32 * 196, 1, bias=False)
    )
    real = torch.rand(SAMPLES, 1, 28, 28)
    fake = real.flip(0) + 2e-4 * torch.randn_like(real)

    def loss(places: torch.Tensor) -> torch.Tensor:
        return model(fake[places]).mean() - model(real[places]).mean()

    places = torch.arange(SAMPLES)
    ours, theirs = in_parts(model, loss, places), gradients(loss(places), model)
    differences = [float((one - other).norm() / other.norm()) for one, other in zip(ours, theirs, strict=True)]
    assert max(differences) > 1e-3
    compare(model, ours, theirs)


@pytest.mark.parametrize(
    "mistake", ["factor", "factor of the smallest", "missing sample", "own statistics", "no gradient"]
)
def test_mistakes_are_found(mistake: str) -> None:
    """A factor of the number of ranks, one sample of all, and BatchNorm with a rank's own statistics."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.Tanh(), nn.Linear(16, 4))
    x, y = torch.randn(SAMPLES, 8), torch.randint(4, (SAMPLES,))

    def loss(places: torch.Tensor) -> torch.Tensor:
        return nn.functional.cross_entropy(model(x[places]), y[places])

    places = torch.arange(SAMPLES)
    theirs = gradients(loss(places), model)
    ours = [one.clone() for one in theirs]
    if mistake == "factor":
        ours = [one * 2 for one in theirs]
    if mistake == "factor of the smallest":
        smallest = min((1, *range(2, 6)), key=lambda place: (place == 1, float(theirs[place].norm())))
        ours[smallest] = theirs[smallest] * 2
    if mistake == "missing sample":
        ours = gradients(loss(places[1:]), model)
    if mistake == "own statistics":
        ours = in_parts(model, loss, places, 2)
    if mistake == "no gradient":
        ours[0] = torch.zeros_like(ours[0])
    with pytest.raises(ScalingError, match="first step differs from one device"):
        compare(model, ours, theirs)


def test_process_that_uses_a_gpu_already_is_not_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    """A library that used the device before PyTorch forbids the fork, and the reason says so."""
    monkeypatch.setattr(first_step.devices, "is_in_use", lambda: True)
    step = first_step.FirstStep(is_main=True, say=lambda _: None)
    assert not step.send_ahead(before_device=True)
    assert step._verdict() == (
        "not compared with one device: echelon cannot fork a process that has used a GPU; "
        "echelon prove compares separate runs"
    )
