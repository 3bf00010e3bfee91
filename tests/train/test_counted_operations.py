"""A training whose operations a tool counts, and whose gradients the script keeps, is that of one device."""

from pathlib import Path

from tests import warm

from echelon.train.parallelism.calls import COUNTED

SCRIPT = """
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
kept = []
for step in range(3):
    x = torch.randn(8, 4)
    optimizer.zero_grad()
    with FlopCounterMode(display=False) as counter:
        loss = model(x).sin().mean()
        loss.backward()
    optimizer.step()
    kept.append(model[0].weight.grad)
    print(round(loss.item(), 6), counter.get_total_flops())
print([round(gradient.abs().sum().item(), 5) for gradient in kept])
"""


def test_counts_and_gradients_of_one_device(tmp_path: Path) -> None:
    """A batch that no loader gives is computed whole where a tool counts; a kept gradient is no view of a bucket.

    `estimate.replicas` counts the buckets of --scale data beside the gradients.
    """
    (tmp_path / "train.py").write_text(SCRIPT)
    alone = warm.run(["train.py"], cwd=tmp_path)
    scaled = warm.run(["-m", "echelon", "run", "-n", "2", "--scale", "data", "train.py"], cwd=tmp_path)
    assert scaled.returncode == 0, scaled.stderr
    assert scaled.stdout == alone.stdout
    assert len(set(alone.stdout.splitlines()[-1].split(", "))) == 3  # three gradients, not one that changes
    assert scaled.stderr.count(COUNTED) == 1
