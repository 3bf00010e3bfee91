"""`echelon prove` says "nothing to compare" where equal numbers show nothing, and what it has compared else."""

from pathlib import Path

import pytest
from tests.tiers import in_all, some
from tests.train.test_prove import MEAN, OWN, TRAIN, prove

SCALED = TRAIN.replace("LOSS", MEAN)
NAN = ("loader = DataLoader(", 'x[37] = float("nan")\nloader = DataLoader(')
STILL = [
    (("lr=1e-2", "lr=0.0"), "no weight changes in 8 steps", "the learning rate is 0"),
    in_all(("LOSS", "0 * " + MEAN), "the loss is 0 in each of 8 steps", "it does not depend on the weights"),
    in_all(("range(3)", "range(1)"), "the script made 1 step\n", "let the script make 2 steps or more"),
]
NOISY = """
import numpy, torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler


class Noisy(Dataset):
    def __len__(self):
        return 32

    def __getitem__(self, index):
        return torch.ones(4) * index + torch.from_numpy(numpy.random.randn(4)).float(), torch.ones(1)


dist.init_process_group("gloo")
torch.manual_seed(0)
numpy.random.seed(0)
model = DistributedDataParallel(nn.Linear(4, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
for inputs, targets in DataLoader(Noisy(), batch_size=4, sampler=DistributedSampler(Noisy())):
    optimizer.zero_grad()
    nn.functional.mse_loss(model(inputs), targets).backward()
    optimizer.step()
"""
COUNTED = """    sampler.set_epoch(epoch)
    hits = 0
    for inputs, targets in loader:
        hits += (model(inputs) > 0).sum().item()"""


@pytest.mark.parametrize("script", some([SCALED, OWN], 2), ids=some(["scaled", "own"], 2))
def test_values_that_are_no_numbers(tmp_path: Path, script: str) -> None:
    """Two NaN are not equal; the rank, the step and the sample that began are named."""
    script = script.replace("data = Tensor", NAN[1].partition("\n")[0] + "\ndata = Tensor").replace(*NAN)
    done = prove(tmp_path, script.replace("shuffle=True", "shuffle=False"), "-n", "2", "--steps", "14")
    assert done.returncode == 1, done.stdout
    assert "nothing to compare: from step " in done.stdout
    assert "there is no number: the loss is nan on rank " in done.stdout
    assert "sample 37 of the data set has a value that is not finite" in done.stdout
    assert "equal" not in done.stdout


@pytest.mark.parametrize(("change", "why", "meaning"), STILL)
def test_training_that_stands_still(tmp_path: Path, change: tuple[str, str], why: str, meaning: str) -> None:
    """A loss or weights that never change, and a single step, are equal whatever the ranks do."""
    script = TRAIN.replace(*change).replace("LOSS", MEAN)
    script = script.replace("randn(203", "randn(16") if "range(1)" in script else script
    done = prove(tmp_path, script, "-n", "2", "--steps", "8")
    assert done.returncode == 1, done.stdout
    assert f"nothing to compare: {why}" in done.stdout
    assert meaning in done.stdout


def test_noise_that_a_data_set_draws(tmp_path: Path) -> None:
    """The same samples with other values are no mistake of the script, and no seed is asked for."""
    done = prove(tmp_path, NOISY, "-n", "2", "--steps", "4")
    assert done.returncode == 1
    assert "nothing to compare: in step 1 the same samples of the data set have other values" in done.stdout
    assert "seed" not in done.stdout + done.stderr


def test_part_that_is_divided_by_the_whole(tmp_path: Path) -> None:
    """A rate of a rank's own samples, divided by the size of the data set, is a mistake that is printed."""
    script = OWN.replace("    sampler.set_epoch(epoch)\n    for inputs, targets in loader:", COUNTED)
    script = script.replace("dist.destroy", '    print(f"epoch {epoch} rate {hits / len(data):.3f}")\ndist.destroy')
    done = prove(tmp_path, script, "-n", "2", "--steps", "30")
    assert done.returncode == 1, done.stdout
    assert "'rate' is 0." in done.stdout
    assert "it counts the samples of one rank, but is divided by the number of all samples" in done.stdout


def test_scope_is_one_line(tmp_path: Path) -> None:
    """What was compared, and what was not."""
    script = SCALED.replace("        optimizer.step()", '        optimizer.step()\n    print("loss", loss.item())')
    done = prove(tmp_path, script, "-n", "2", "--steps", "30")
    assert done.returncode == 0, done.stdout
    kinds = "losses, gradients, weights, states of the optimizer"
    assert f"  compared: {kinds}, 2 printed numbers; not compared: files\n" in done.stdout
