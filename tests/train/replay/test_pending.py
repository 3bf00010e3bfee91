"""A checkpoint has the gradients that the next steps of a script need, and no others."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import nn

from echelon.train import patches
from echelon.train.replay import pending, same_script
from echelon.train.scaling_error import ScalingError


class Script:
    """Two models with an optimizer each, whose backward passes and steps are told as in a training."""

    def __init__(self, noted: pending.Pending) -> None:
        self.noted = noted
        self.models = [nn.Linear(2, 1), nn.Linear(2, 1)]
        self.both = [torch.optim.SGD(model.parameters(), lr=0.1) for model in self.models]

    def optimizers(self) -> list[torch.optim.SGD]:
        return self.both

    def trained(self) -> dict[str, torch.Tensor]:
        return {
            f"model-{n}/{name}": one for n, model in enumerate(self.models) for name, one in model.named_parameters()
        }

    def backward(self, place: int) -> None:
        self.models[place](torch.ones(1, 2)).sum().backward()
        self.noted.note_backward()

    def step(self, place: int) -> None:
        self.both[place].step()
        self.noted.note_step(self.both[place])

    def needed(self) -> list[str]:
        """Return the models whose gradients a checkpoint would have now."""
        tensors, kinds = self.noted.gradients(self, lambda: None)
        assert set(tensors) == {pending.GRADIENT + name for name in kinds}
        return sorted({name.partition("/")[0] for name in kinds})


@pytest.fixture
def script() -> Iterator[Script]:
    before = [id(patch) for owner in (torch.optim.Optimizer, nn.Module) for patch in patches.of(owner)]
    noted = pending.Pending()
    noted.install()
    yield Script(noted)
    for owner in (torch.optim.Optimizer, nn.Module):
        for patch in patches.of(owner):
            if id(patch) not in before:
                patch.undo()


def test_gradients_that_are_cleared_are_left_out(script: Script) -> None:
    """By the optimizer or by the model, before the backward pass or after the step."""
    for _ in range(2):
        script.both[0].zero_grad()
        script.models[1].zero_grad()
        script.backward(0)
        script.backward(1)
        script.step(0)
        script.step(1)
    assert script.needed() == []


def test_gradients_that_are_never_cleared_are_kept(script: Script) -> None:
    """Clearing them once before the first step does not count."""
    script.both[0].zero_grad()
    for _ in range(2):
        script.backward(0)
        script.step(0)
    assert script.needed() == ["model-0"]


def test_gradients_that_are_added_up_are_kept(script: Script) -> None:
    """One optimizer steps while another one still adds up, and while a backward pass has reached its own again."""
    for _ in range(3):
        script.backward(0)
        script.backward(1)
        script.step(0)
        script.both[0].zero_grad()
    assert script.needed() == ["model-1"]
    script.step(1)
    script.both[1].zero_grad()
    assert script.needed() == []
    script.backward(0)
    assert script.needed() == ["model-0"]


def test_gradients_are_put_back(script: Script) -> None:
    """Also one that has rows, and no gradient of a weight that is not trained any more."""
    words = nn.Embedding(4, 2, sparse=True)
    words(torch.tensor([1])).sum().backward()
    script.models[1] = words
    script.both[1] = torch.optim.SGD(words.parameters(), lr=0.1)
    script.backward(0)
    tensors, kinds = script.noted.gradients(script, lambda: None)
    kept = {name: one.clone() for name, one in tensors.items()}
    wanted = [one.grad.to_dense() for one in script.trained().values() if one.grad is not None]
    for one in script.trained().values():
        one.grad = None
    tensors = pending.empty(script.trained(), kinds)
    for name, one in kept.items():
        tensors[name].copy_(one)
    pending.put(script.trained(), kinds, tensors)
    assert words.weight.grad is not None
    assert words.weight.grad.is_sparse
    for one, other in zip(script.trained().values(), wanted, strict=True):
        assert one.grad is not None
        assert torch.equal(one.grad.to_dense(), other)
    with pytest.raises(ScalingError, match="a gradient of model-7/bias, which no optimizer"):
        pending.empty(script.trained(), {"model-7/bias": "dense"})


def test_gradients_that_are_not_cleared_before_each_step_are_needed(script: Script) -> None:
    needed = []
    for number in range(4):
        if number != 2:
            script.both[0].zero_grad()
        script.backward(0)
        script.step(0)
        needed.append(script.needed())
    assert needed[1:] == [[], ["model-0"], ["model-0"]]


def test_all_gradients_are_needed_where_the_script_looks_at_them(script: Script, tmp_path: Path) -> None:
    texts = {"norm = weight.grad.norm()": True, "zero_grad(set_to_none=False)": True, "autograd.grad(loss, x)": False}
    for text, looks in texts.items():
        path = tmp_path / "script.py"
        path.write_text(text)
        assert same_script.looks_at_gradients([str(path)]) == looks
    for _ in range(2):
        script.both[0].zero_grad()
        script.backward(0)
        script.step(0)
    assert script.needed() == []
    script.noted.looks = True
    assert script.needed() == ["model-0"]


def test_step_with_gradients_that_were_left_out_is_refused(script: Script) -> None:
    script.noted.expect_clearing(script.both, [0, 1])
    script.both[0].zero_grad()
    script.step(0)
    with pytest.raises(ScalingError, match="SGD steps with gradients of before the checkpoint"):
        script.step(1)
