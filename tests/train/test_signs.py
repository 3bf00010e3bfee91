"""A mean over classes knows what it is divided by, whether or not some targets do not count, and on whichever rank."""

from pathlib import Path

import pytest
from tests.train.test_options import numbers, run

SCRIPT = """
import sys
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
inputs, targets = torch.randn(64, 5, 8), torch.randint(0, 4, (64, 5))
targets[40, 2:] = -100  # in one batch, of one rank
loader = DataLoader(TensorDataset(inputs, targets), batch_size=8)
model = nn.Linear(8, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
dist = getattr(torch, "distributed")  # not so that echelon thinks that the script shares the work
calls, reduce = [], dist.all_reduce


def counted(tensor, *args, **kwargs):
    calls.append(tensor.numel())
    return reduce(tensor, *args, **kwargs)


dist.all_reduce = counted
for step, (x, y) in enumerate(loader):
    x, y = x[:, 1:], y[:, 1:].contiguous()
    flat = y.view(-1).long()
    if step == 2:
        y[:4, 1] = -100  # through another view of the same elements
    if step == 3:
        flat = torch.where(flat > 2, flat, -100)
    calls.clear()
    loss = nn.functional.cross_entropy(model(x).flatten(0, 1), flat)
    print(len(calls), file=sys.stderr)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(loss.item())
"""


@pytest.mark.parametrize("num_ranks", [2, 3])
def test_targets_that_do_not_count(tmp_path: Path, num_ranks: int) -> None:
    """The losses are those of one device, and from the second batch on nothing is exchanged unless it must be."""
    (tmp_path / "signs.py").write_text(SCRIPT)
    alone = numbers(run(tmp_path, "signs.py"))
    done = run(tmp_path, "-m", "echelon", "run", "-n", str(num_ranks), "--scale", "data", "signs.py")
    assert numbers(done) == pytest.approx(alone, rel=1e-5)
    exchanged = [line for line in done.stderr.splitlines() if line.isdigit()]
    assert exchanged == ["1", "0", "1", "1", "0", "1", "0", "0"]
