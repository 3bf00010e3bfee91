"""echelon.checkpoints() in one process: what is kept, and what is refused with the reason."""

from pathlib import Path
from typing import Any

import pytest
import torch
from tests.tiers import product
from torch import nn
from torch.utils.data import DataLoader

import echelon
from echelon.train.checkpoints import saving
from echelon.train.scaling_error import ScalingError


class Stream(torch.utils.data.IterableDataset[torch.Tensor]):
    def __iter__(self) -> Any:
        return iter(torch.arange(24.0))


def begin(**named: Any) -> Any:
    """Return the checkpoints of a training in what counts as a new process."""
    saving._taken.clear()
    return echelon.checkpoints(**named)


class Training:
    """A training that begins anew or continues; each batch is a mean of numbers that tells which samples were in it."""

    def __init__(self, *, hidden: int = 4, kind: Any = torch.optim.AdamW, loader: Any = None, **more: Any) -> None:
        torch.manual_seed(0)
        self.model = nn.Sequential(nn.Linear(1, hidden), nn.Dropout(0.2), nn.BatchNorm1d(hidden), nn.Linear(hidden, 1))
        self.optimizer = kind(self.model.parameters(), lr=0.01)
        self.loader = DataLoader(torch.arange(24.0), batch_size=4, shuffle=True) if loader is None else loader
        self.checkpoint = begin(model=self.model, optimizer=self.optimizer, every="2steps", **more)

    def train(self, *, until: int = 1000) -> "list[tuple[int, float, float]]":
        done = []
        for epoch in self.checkpoint.epochs(3):
            for batch in self.checkpoint.batches(self.loader):
                loss = self.model(batch[:, None]).square().mean()
                self.optimizer.zero_grad()
                loss.backward()
                self.optimizer.step()
                done.append((epoch, float(batch.sum()), float(loss.detach())))
                self.checkpoint.wait()
                if self.checkpoint.step_number + 1 >= until:
                    return done
        return done


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@product(until=[1, 5, 6, 7, 13], kind=[torch.optim.AdamW, torch.optim.SGD, torch.optim.Adagrad])
def test_training_goes_on_to_the_bit(folder: Path, monkeypatch: pytest.MonkeyPatch, kind: Any, until: int) -> None:
    """Also at the end of an epoch, and where no checkpoint was made yet."""
    (folder / "other").mkdir()
    monkeypatch.chdir(folder / "other")
    wanted = Training(kind=kind).train()
    monkeypatch.chdir(folder)
    first = Training(kind=kind).train(until=until)
    again = Training(kind=kind)
    num_kept = again.checkpoint.step_number
    assert num_kept == (until - 1) // 2 * 2
    assert first[:num_kept] + again.train() == wanted


@pytest.mark.parametrize("loader", [DataLoader(Stream(), batch_size=4), torch.arange(24.0).view(6, 4)])
def test_loader_without_an_index(loader: Any) -> None:
    """Its first batches are asked for, and left out."""
    first = Training(loader=loader).train(until=5)
    again = Training(loader=loader).train()
    sums = [total for _, total, _ in first[:4] + again]
    assert sums == [6.0, 22.0, 38.0, 54.0, 70.0, 86.0] * 3


def test_values_and_schedulers() -> None:
    model = nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
    for attempt in range(2):
        named = {"model": model, "optimizer": optimizer, "scheduler": scheduler}
        checkpoint = begin(every="1steps", **named)
        assert checkpoint.values == ({"best": 3} if attempt else {})
        checkpoint.values["best"] = 3
        for _ in range(2):
            model(torch.ones(1, 1)).sum().backward()
            optimizer.step()
            scheduler.step()
            checkpoint.step()
            checkpoint.wait()
        assert checkpoint.step_number == 2 * (attempt + 1)
        assert optimizer.param_groups[0]["lr"] == pytest.approx(0.5 ** (2 * (attempt + 1)))
        optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
        scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)


def test_accumulated_gradients_are_no_step() -> None:
    """Between two batches without a step of the optimizer, gradients are still added up, so nothing is saved."""
    training = Training()
    for _epoch in training.checkpoint.epochs(1):
        for number, batch in enumerate(training.checkpoint.batches(training.loader)):
            training.model(batch[:, None]).square().mean().backward()
            if number % 3 == 2:
                training.optimizer.step()
                training.optimizer.zero_grad()
    assert training.checkpoint.step_number == 2


def refused(call: Any) -> str:
    with pytest.raises(ScalingError) as caught:
        call()
    caught.value.withdraw()
    return str(caught.value)


def test_other_models_are_refused(folder: Path) -> None:
    Training().train(until=3)
    text = refused(lambda: Training(hidden=5))
    assert "model/0.weight" in text
    assert "(4, 1)" in text or "[4, 1]" in text
    assert "(5, 1)" in text or "[5, 1]" in text
    text = refused(lambda: begin(model=nn.Linear(1, 1)))
    assert "the checkpoint has the optimizers optimizer, and the script names none" in text


def test_wrong_objects_are_refused() -> None:
    model, other = nn.Linear(1, 1), nn.Linear(2, 2)
    optimizer = torch.optim.SGD(other.parameters(), lr=1.0)
    text = refused(lambda: begin(model=model, optimizer=optimizer))
    assert "optimizer trains a weight of shape (2, 2) that no model of the checkpoint has" in text
    assert "echelon.checkpoints(model=model, optimizer=optimizer)" in text
    assert "rate is a float, which has no state to save" in refused(lambda: begin(rate=0.1))
    assert "every='soon' is no interval" in refused(lambda: begin(model=model, every="soon"))


def test_other_loops_are_refused() -> None:
    """Outside of an epoch, and a second one in an epoch: a checkpoint has one place in one loop."""
    training = Training()
    checkpoint = training.checkpoint
    text = "is for one loop in each epoch of checkpoint.epochs()"
    assert text in refused(lambda: next(checkpoint.batches(training.loader)))
    for _epoch in checkpoint.epochs(1):
        assert "whose batches nobody counts" in refused(checkpoint.step)
        assert len(list(checkpoint.batches([torch.ones(1)]))) == 1
        assert text in refused(lambda: next(checkpoint.batches(training.loader)))
    assert "is called a second time" in refused(lambda: next(checkpoint.epochs(2)))
    named = {"model": training.model, "optimizer": training.optimizer}
    assert "second time in one process" in refused(lambda: echelon.checkpoints(**named))


class Extra(nn.Linear):
    def get_extra_state(self) -> Any:
        return {"scale": 1}


def test_states_that_cannot_be_kept_are_refused() -> None:
    assert "_extra_state, which is a dict and no tensor" in refused(begin(model=Extra(1, 1), every="1steps").step)
    checkpoint = begin(model=nn.Linear(1, 1), every="1steps")
    checkpoint.values["model"] = object()
    assert "checkpoint.values['model'] is a object, which cannot be saved" in refused(checkpoint.step)
    model = nn.Linear(1, 1)
    optimizer = torch.optim.LBFGS(model.parameters())
    checkpoint = begin(model=model, optimizer=optimizer, every="1steps")

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = model(torch.ones(1, 1)).square().sum()
        loss.backward()
        return loss

    optimizer.step(closure)
    assert "optimizer keeps" in refused(checkpoint.step)


def drawn(*, until: int) -> "list[float]":
    """Train in a loop without a loader, whose batches and dropout are drawn."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(2, 4), nn.Dropout(0.5), nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    checkpoint = begin(model=model, optimizer=optimizer, every="2steps")
    losses = []
    while checkpoint.step_number < until:
        loss = model(torch.rand(4, 2)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
        checkpoint.step()
        checkpoint.wait()
    return losses


def test_loop_that_draws_its_batches(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = drawn(until=4)
    again = drawn(until=8)
    (folder / "other").mkdir()
    monkeypatch.chdir(folder / "other")
    assert first + again == drawn(until=8)


@product(how=["generator", "persistent"], until=[4, 9, 14])
def test_loader_with_random_numbers_of_its_own(
    folder: Path, monkeypatch: pytest.MonkeyPatch, how: str, until: int
) -> None:
    """A generator of the loader, and workers that stay: each epoch has the order of a run that nobody disturbed."""

    def loader() -> Any:
        if how == "generator":
            generator = torch.Generator().manual_seed(5)
            return DataLoader(torch.arange(24.0), batch_size=4, shuffle=True, generator=generator)
        return DataLoader(torch.arange(24.0), batch_size=4, shuffle=True, num_workers=1, persistent_workers=True)

    first = Training(loader=loader()).train(until=until)
    again = Training(loader=loader())
    num_kept = again.checkpoint.step_number
    done = first[:num_kept] + again.train()
    (folder / "other").mkdir()
    monkeypatch.chdir(folder / "other")
    assert done == Training(loader=loader()).train()


def test_other_batch_size() -> None:
    """Four batches of 4 samples are two of 8, and one is left."""
    Training().train(until=5)
    other = Training(loader=DataLoader(torch.arange(24.0), batch_size=8))
    assert len([epoch for epoch, _, _ in other.train() if epoch == 0]) == 1


def test_place_in_other_batches_is_refused() -> None:
    Training().train(until=5)
    other = Training(loader=DataLoader(torch.arange(24.0), batch_size=5))
    assert "is after 4 batches of 4 samples on 1 ranks, and the loader's batches of 5" in refused(other.train)


def test_optimizer_that_still_adds_up_gradients() -> None:
    """A step is over when each optimizer that has gradients has stepped."""
    models = [nn.Linear(1, 1), nn.Linear(1, 1)]
    optimizers = [torch.optim.SGD(model.parameters(), lr=0.1) for model in models]
    checkpoint = begin(one=models[0], two=models[1], first=optimizers[0], second=optimizers[1], every="1steps")
    counts = []
    for number in range(4):
        for model in models:
            model(torch.ones(1, 1)).sum().backward()
        optimizers[0].step()
        optimizers[0].zero_grad()
        if number % 2:
            optimizers[1].step()
            optimizers[1].zero_grad()
        checkpoint.step()
        counts.append(checkpoint.step_number)
    assert counts == [0, 1, 1, 2]
