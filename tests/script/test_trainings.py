"""Scripts that train without backward(): scaled if they step an optimizer, else a line says that each rank does all."""

import os
import sysconfig
import textwrap
from pathlib import Path

import pytest

from echelon.launch import prepare
from echelon.script import distributes
from echelon.script.reading import ScriptReading
from echelon.spec import Command, Job

COMMAND = Command(kind="script", target="train.py")

HEAD = "import torch\nfrom torch import nn\nnet = nn.Linear(4, 1)\n"
OPTIMIZED = {
    "gradients of autograd": """
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        for x, y in loader:
            gradients = torch.autograd.grad(nn.functional.mse_loss(net(x), y), list(net.parameters()))
            for weight, gradient in zip(net.parameters(), gradients):
                weight.grad = gradient
            optimizer.step()
        """,
    "gradients of functions": """
        from torch.func import functional_call, grad
        from torch.optim import Adam
        optimizer = Adam(net.parameters())
        for x, y in loader:
            for name, gradient in grad(loss)(dict(net.named_parameters()), x, y).items():
                net.get_parameter(name).grad = gradient
            optimizer.step()
        """,
    "an estimate": """
        import torch.optim as optim
        class Trainer:
            def make(self):
                self.optimizer = optim.SGD(net.parameters(), lr=0.1)
            def update(self, noise, gain):
                for weight in net.parameters():
                    weight.grad = noise * gain
                self.optimizer.step()
        """,
}
BY_HAND = {
    "weights in a dictionary": (
        """
        from torch.func import functional_call, grad_and_value
        for x, y in loader:
            gradients, loss = grad_and_value(f)(weights, x, y)
            weights = {name: weight - 0.1 * gradients[name] for name, weight in weights.items()}
        """,
        "it changes weights with gradients of torch.func",
    ),
    "weights in place": (
        """
        for x, y in loader:
            gradients = torch.autograd.grad(f(net(x), y), list(net.parameters()))
            with torch.no_grad():
                for weight, gradient in zip(net.parameters(), gradients):
                    weight.data.add_(gradient, alpha=-0.1)
        """,
        "it changes weights with gradients of torch.autograd.grad",
    ),
    "a matrix": (
        "w = torch.zeros(4, 1)\nfor x, y in loader:\n    w -= 0.1 * x.T @ (x @ w - y)\n",
        "it changes weights by hand",
    ),
    "evolution": (
        "for noise in draws:\n    nn.utils.vector_to_parameters(old + noise, net.parameters())\n    score(net)\n",
        "it changes weights by hand",
    ),
    "noise for each weight": (
        "for step in range(9):\n    for p in net.parameters():\n        p += 0.1 * torch.randn_like(p)\n",
        "it changes weights by hand",
    ),
}  # fmt: skip
NO_TRAININGS = {
    "evaluation": """
        net.load_state_dict(torch.load("model.pt"))
        total = correct = 0
        with torch.no_grad():
            for x, y in loader:
                correct += (net(x).argmax(1) == y).sum().item()
                total += len(y)
        print(correct / total, sum(weight.numel() for weight in net.parameters()))
        """,
    "generation": """
        for step in range(20):
            x = torch.cat([x, net(x).softmax(-1).multinomial(1)], 1)
            left -= 1
        """,
    "diffusion": "for t in scheduler.timesteps:\n    x = scheduler.step(net(x) - 2 * net(t), t, x).prev_sample\n",
    "saliency": "for x, y in loader:\n    print(torch.autograd.grad(net(x).sum(), x)[0].abs().mean())\n",
    "simulation": "for step in range(9):\n    x = x + 0.1 * torch.autograd.grad(-net(x).sum(), x)[0]\n",
    "counting": "for weight in net.parameters():\n    number += weight.numel()\n    weight.requires_grad_(False)\n",
    "drawn weights": "for weight in net.parameters():\n    nn.init.normal_(weight)\n    weight.data.uniform_(0, 1)\n",
    "an optimizer that is loaded": "optimizer = torch.optim.Adam(net.parameters())\noptimizer.load_state_dict(saved)\n",
    "an environment": "while not done:\n    x, reward, done = env.step(net(x).argmax())\n    total += reward\n",
}


def read(folder: Path, text: str) -> ScriptReading:
    (folder / "train.py").write_text(HEAD + textwrap.dedent(text))
    library = sysconfig.get_path("stdlib")
    return ScriptReading(COMMAND, cwd=str(folder), search_path=(str(folder), library))


def decide(reading: ScriptReading) -> prepare.Decision:
    return prepare.decide(Job(command=COMMAND), reading)


@pytest.mark.parametrize("name", OPTIMIZED)
def test_step_of_an_optimizer_is_a_training(tmp_path: Path, name: str) -> None:
    """The gradients may come from any function: the ranks share the batches, and each steps with the same gradients."""
    decision = decide(read(tmp_path, OPTIMIZED[name]))
    assert (decision.how, decision.why.split(",")[0]) == ("data", "the script steps an optimizer of torch.optim")


@pytest.mark.parametrize("name", BY_HAND)
def test_weights_that_are_changed_by_hand(tmp_path: Path, name: str) -> None:
    """Nothing is shared without an optimizer, so each rank trains all, and the run says so."""
    text, update = BY_HAND[name]
    decision = decide(read(tmp_path, text))
    assert decision.how == "off"
    assert decision.why.startswith(f"each rank runs the whole script by itself: {update}, but calls no backward()")


@pytest.mark.parametrize("name", NO_TRAININGS)
def test_no_training_is_left_as_it_is(tmp_path: Path, name: str) -> None:
    """Evaluation and generation run unchanged on each rank, without a line."""
    assert decide(read(tmp_path, NO_TRAININGS[name])) == prepare.Decision(how="off", why="")


def test_script_without_pytorch_trains_nothing(tmp_path: Path) -> None:
    """Its loops are no business of echelon."""
    text = "import numpy as np\nfor x, y in loader:\n    w -= 0.1 * x.T @ (x @ w - y)\n    optimizer.step()\n"
    (tmp_path / "train.py").write_text(text)
    imports = ScriptReading(COMMAND, cwd=os.fspath(tmp_path), search_path=()).imports
    assert not distributes.trains(imports)
    assert not distributes.update_by_hand(imports)
