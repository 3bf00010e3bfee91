"""`echelon.start()` in a script: the same training by plain Python, on one rank and on several."""

import re
from pathlib import Path

import pytest
from tests import warm

SCRIPT = """
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import echelon

torch.manual_seed(0)
run = echelon.start()
x = torch.randn(110, 6)
loader = run.loader(DataLoader(TensorDataset(x, x.sum(1, keepdim=True)), batch_size=20, shuffle=True))
model = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
model = run.model(model, optimizer)
for _epoch in range(4):
    for inputs, targets in loader:
        inputs, targets = inputs.to(run.device), targets.to(run.device)
        loss = nn.functional.mse_loss(model(inputs), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if run.is_main:
            print(f"loss {loss.item():.7f} of {len(inputs)} in {len(loader)}")
        else:
            loss.item()
print("mean", round(run.mean(float(run.world.rank)).item(), 4), flush=True)
run.barrier()
if run.is_main:
    torch.save(model.state_dict(), "model.pt")
"""


def train(folder: Path, *command: str) -> tuple[list[float], str]:
    """Return the losses and all that was printed."""
    folder.mkdir()
    (folder / "train.py").write_text(SCRIPT)
    done = warm.run([*command, "train.py"], cwd=folder)
    assert done.returncode == 0, done.stderr
    return [float(loss) for loss in re.findall(r"^loss (\S+)", done.stdout, re.MULTILINE)], done.stdout


@pytest.mark.tier("all")
def test_same_training_by_plain_python_and_on_three_ranks(tmp_path: Path) -> None:
    """Losses, sizes and weights are the same however the script was started."""
    import torch

    alone, words = train(tmp_path / "alone")
    shared, _ = train(tmp_path / "shared", "-m", "echelon", "run", "-n", "3")
    assert len(alone) == 24
    assert "of 20 in 6" in words
    assert shared == pytest.approx(alone, rel=1e-5)
    one, other = (torch.load(tmp_path / name / "model.pt") for name in ("alone", "shared"))
    assert all(torch.allclose(one[key], other[key], atol=1e-5) for key in one)


def test_mean_is_weighted_by_the_samples_of_each_rank(tmp_path: Path) -> None:
    """The last batch of 110 has 10 samples, of which three ranks have 4, 3 and 3."""
    _, words = train(tmp_path / "shared", "-m", "echelon", "run", "-n", "3")
    assert f"mean {round((0 * 4 + 1 * 3 + 2 * 3) / 10, 4)}" in words


REFUSED = """
import torch
import echelon
from echelon.train.strategies import versions

run = echelon.start()
"""


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("run.parallelize(torch.nn.Linear(4, 1), echelon.Strategy(tensor=3))", "echelon.StrategyError: "),
        ('versions.check(echelon.Strategy(context=2), run.device, "2.6.0")', "PyTorch 2.6.0 cannot do that yet"),
    ],
)
def test_what_cannot_be_done_is_refused_as_wrong_input_is(tmp_path: Path, line: str, reason: str) -> None:
    """The reason, a way out and the script's own line; exit code 2, and no traceback."""
    (tmp_path / "train.py").write_text(REFUSED + line)
    done = warm.run(["-m", "echelon", "run", "-n", "2", "train.py"], cwd=tmp_path)
    assert done.returncode == 2
    assert "echelon: the script cannot be scaled\n" in done.stderr
    assert reason in done.stderr
    assert "  way out: " in done.stderr
    assert "Traceback" not in done.stderr
