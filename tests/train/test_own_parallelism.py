"""A parallelism is one class in one file, which `--scale` and `run.parallelize` both take."""

import json
import subprocess
from pathlib import Path

import pytest
from tests import warm

WEIGHTED = """
import torch
import torch.distributed as dist
from echelon import SharedBatches


class Weighted(SharedBatches):
    '''Gradients are averaged with weights: 0.5 on rank 0 and 1.5 on rank 1.'''

    is_as_one_device = False

    def headline(self):
        return "gradients averaged with weights"

    def mean_gradients(self, loss, run_backward):
        run_backward(loss)
        self.is_local = True
        self.reduce()

    def reduce(self):
        if self.is_local:
            self.is_local = False
            for parameter in self.known_parameters():
                if parameter.grad is None:
                    parameter.grad = torch.zeros_like(parameter)
                parameter.grad *= 2 * (0.5 + self.world.rank) / self.world.size**2
                dist.all_reduce(parameter.grad)


class Even(Weighted):
    '''As Replicated: its first step is compared with one device.'''

    is_as_one_device = True

    def mean_gradients(self, loss, run_backward):
        run_backward(loss / (0.5 + self.world.rank) * self.world.size / 2)
        self.is_local = True
        self.reduce()
"""
SCRIPT = """
import json
import torch
from torch import nn

torch.manual_seed(0)
model = nn.Linear(4, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(3):
    x = torch.randn(8, 4)
    optimizer.zero_grad()
    LOSS.backward()
    optimizer.step()
print(json.dumps(model.weight.flatten().tolist()))
"""
OF_BATCH = "model(x).pow(2).mean()"
BY_HAND = "(0.25 * model(x[:4]).pow(2).mean() + 0.75 * model(x[4:]).pow(2).mean())"
EXPLICIT = """
import json
import echelon
import torch
from torch import nn
from own import Weighted

run = echelon.start()
torch.manual_seed(0)
trained = run.parallelize(nn.Linear(4, 2), Weighted, loss=lambda output, _: output.pow(2).mean())
trained.optimize(torch.optim.SGD, lr=0.1)
for _ in range(3):
    x = torch.randn(8, 4)
    step = trained.step(x, x)
assert 0 < trained.evaluate(x, x) < step.loss
trained.save("kept.pt")
trained.load(trained.state())
if run.is_main:
    print(json.dumps(torch.load("kept.pt", weights_only=True)["model"]["weight"].flatten().tolist()))
"""


def run(folder: Path, *words: str) -> "subprocess.CompletedProcess[str]":
    (folder / "own.py").write_text(WEIGHTED)
    (folder / "train.py").write_text(SCRIPT.replace("LOSS", OF_BATCH))
    (folder / "by_hand.py").write_text(SCRIPT.replace("LOSS", BY_HAND))
    (folder / "explicit.py").write_text(EXPLICIT)
    return warm.run(words, cwd=folder)


def weights(folder: Path, *words: str) -> list[float]:
    done = run(folder, *words)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_by_hooks_and_by_hand(tmp_path: Path) -> None:
    """Both train as the class says: as one process that weighs the halves of a batch."""
    expected = pytest.approx(weights(tmp_path, "by_hand.py"), abs=1e-6)
    words = ("-m", "echelon", "run", "-n", "2")
    assert weights(tmp_path, *words, "--scale", "own.py:Weighted", "train.py") == expected
    assert weights(tmp_path, *words, "explicit.py") == expected
    assert weights(tmp_path, "train.py") != expected


def test_checked_as_any_other(tmp_path: Path) -> None:
    """One that claims to train as one device is compared with one, and proved."""
    done = run(tmp_path, "-m", "echelon", "run", "-n", "2", "--scale", "own.py:Even", "train.py")
    assert "first step: equals that of one device" in done.stderr
    done = run(tmp_path, "-m", "echelon", "prove", "-n", "2", "--steps", "2", "--scale", "own.py:Even", "train.py")
    assert "equal within rounding: 2 steps on 2 ranks" in done.stdout


TWO = """
import json
import echelon
import torch
from torch import nn

run = echelon.start()
torch.manual_seed(0)
both = [run.parallelize(nn.Linear(4, 4), echelon.FullySharded, loss=nn.functional.mse_loss) for _ in range(2)]
for trained in both:
    trained.optimize(torch.optim.SGD, lr=0.1)
for _ in range(2):
    x = torch.randn(8, 4)
    for trained in both:
        trained.step(x, x.flip(1))
states = [trained.state() for trained in both]
if run.is_main:
    print(json.dumps([value for state in states for value in state["weight"].flatten().tolist()]))
"""
OWN_CLASSES = """
import sys
import echelon
import torch
from torch import nn

run = echelon.start()
torch.manual_seed(0)
kinds = {"sharded": echelon.FullySharded, "replicated": echelon.Replicated, "number": 3, "module": nn.Linear}
model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
trained = run.parallelize(model, kinds[sys.argv[1]], loss=nn.functional.mse_loss)
trained.optimize(torch.optim.Adam, lr=0.1)
for _ in range(3):
    x = torch.randn(8, 4)
    step = trained.step(x, x[:, :2], clip=0.5)
trained.save("kept.pt")
if run.is_main:
    kept = torch.load("kept.pt", weights_only=True)["model"]
    print([float(step.loss), float(step.gradient_norm), *(float(weight.sum()) for weight in kept.values())])
"""


def test_classes_of_echelon_by_hand(tmp_path: Path) -> None:
    """run.parallelize(model, FullySharded) trains with the object that --scale fsdp has, and saves whole weights."""
    (tmp_path / "classes.py").write_text(OWN_CLASSES)
    expected = pytest.approx(weights(tmp_path, "classes.py", "replicated"), abs=1e-5)
    for kind in ("replicated", "sharded"):
        done = run(tmp_path, "-m", "echelon", "run", "-n", "2", "classes.py", kind)
        assert json.loads(done.stdout or "[]") == expected, done.stderr
        assert "first step: equals that of one device" in done.stderr


@pytest.mark.parametrize(
    ("kind", "told"),
    [("number", "but got 3, which is 3, and no parallelism"), ("module", "but got 'Linear', which is <class")],
)
def test_what_is_no_class_of_parallelism(tmp_path: Path, kind: str, told: str) -> None:
    """run.parallelize() names what it got, and what it takes."""
    (tmp_path / "classes.py").write_text(OWN_CLASSES)
    done = run(tmp_path, "-m", "echelon", "run", "-n", "2", "classes.py", kind)
    assert done.returncode == 2
    assert told in done.stderr
    assert "way out: run.parallelize(model, echelon.Strategy(…)), or" in done.stderr


@pytest.mark.parametrize(
    ("words", "told", "hint"),
    [
        ("own.py:Weigted", "own.py has no class Weigted; its classes are Weighted, Even", "--scale own.py:Weighted"),
        ("none.py:Weighted", "there is no file none.py", "ls ."),
        (
            "own.py",
            "the choices are auto, off, data, fsdp, tensor, context, pipeline, auto-fit, or a class",
            "--scale auto",
        ),
        ("own.py:Even --exact 4", "--exact does not go with --scale own.py:Even", "remove --exact"),
        ("own.py:Even --sync-every 4", "--sync-every does not go with --scale own.py:Even", "remove --sync-every"),
        ("train.py:Model", "train.py has no class Model; its classes are none", "class Model(echelon.Replicated)"),
    ],
)
def test_wrong_class(tmp_path: Path, words: str, told: str, hint: str) -> None:
    """What cannot be a parallelism is refused before anything is started, with what can."""
    done = run(tmp_path, "-m", "echelon", "run", "-n", "2", "--scale", *words.split(), "train.py")
    assert done.returncode == 2
    assert told in done.stderr
    assert hint in done.stderr
    assert not (tmp_path / "echelon-runs").exists()


NOT_WHOLE = "class Weighted(SharedBatches): pass\n"


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("raise RuntimeError('no such cluster')\n", "the file fails with RuntimeError: no such cluster"),
        ("class Weighted: pass\n", "Weighted is <class 'other.Weighted'>, and no parallelism"),
        ("from echelon import SharedBatches\n" + NOT_WHOLE, "Weighted has no mean_gradients(loss, run_backward)"),
        ("from neighbour import SharedBatches\n" + NOT_WHOLE, "Weighted has no mean_gradients(loss, run_backward)"),
    ],
    ids=["fails", "no parallelism", "not whole", "beside another file"],
)
def test_class_that_ranks_refuse(tmp_path: Path, text: str, told: str) -> None:
    """What only an import can tell is told by the ranks, without a traceback."""
    (tmp_path / "neighbour.py").write_text("from echelon import SharedBatches\n")
    (tmp_path / "other.py").write_text(text if "class" in text else text + "class Weighted: pass\n")
    done = run(tmp_path, "-m", "echelon", "run", "-n", "2", "--scale", "other.py:Weighted", "train.py")
    assert done.returncode == 2
    assert told in done.stderr
    assert "Traceback" not in done.stderr


def test_two_models_of_one_training(tmp_path: Path) -> None:
    """A second model joins the parallelism of the first, whose optimizer stays known."""
    (tmp_path / "two.py").write_text(TWO)
    expected = pytest.approx(weights(tmp_path, "two.py"), abs=1e-5)
    assert weights(tmp_path, "-m", "echelon", "run", "-n", "2", "two.py") == expected
