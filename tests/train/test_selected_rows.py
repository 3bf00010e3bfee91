"""A model that selects rows is understood also where all ranks select equally many in the first batches."""

import re
from pathlib import Path

import pytest
from tests import warm
from tests.tiers import some

SCRIPT = """
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
x = torch.randn(96, 5)
keep = torch.rand(96) < 0.6
keep[:48] = PATTERN  # as many in each half of the first batches
y = (x.sum(-1) > 0).long()


class Detector(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.head = nn.Linear(5, 8), nn.Linear(8, 2)

    def forward(self, x, keep):
        hidden = torch.relu(self.body(x))
        return self.head(hidden[keep]), hidden.mean(0), self.head.weight.sum(0)


model = Detector()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
step = 0
for _ in range(3):
    for xb, kb, yb in DataLoader(TensorDataset(x, keep, y), batch_size=24):
        scores, mean, weights = model(xb, kb)
        loss = F.cross_entropy(scores, yb[kb])
        MORE
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"step {step} loss {loss.item():.7f} rows {len(scores)}")
        step += 1
"""
MORE = "loss = loss + 0.1 * scores.sum() + mean.pow(2).sum() + 0.01 * weights.pow(2).sum()"
PATTERNS = {
    "all in the first part": "torch.tensor(([True] * 3 + [False] * 9) * 4)",
    "all in the last part": "torch.tensor(([False] * 9 + [True] * 3) * 4)",
    "one of three": "torch.tensor([False, False, True] * 16)",
    "all, then one of three": "torch.tensor([True] * 24 + [False, False, True] * 8)",
}


def losses(text: str) -> "list[tuple[float, int]]":
    return [(float(loss), int(rows)) for loss, rows in re.findall(r"loss (\S+) rows (\d+)", text)]


@pytest.mark.parametrize(
    ("pattern", "how"),
    some(
        [
            ("all, then one of three", "-n 2"),
            ("all in the first part", "-n 2"),
            ("all in the last part", "-n 2"),
            ("one of three", "-n 2 --exact 4"),
        ],
        4,
    ),
)
def test_selected_rows_are_those_of_one_device(tmp_path: Path, pattern: str, how: str) -> None:
    """The mean over samples and the sum of the weights beside them stay what they are."""
    script = SCRIPT.replace("PATTERN", PATTERNS[pattern]).replace("MORE", "pass" if "exact" in how else MORE)
    (tmp_path / "train.py").write_text(script)
    alone = warm.run(["train.py"], cwd=tmp_path)
    done = warm.run(["-m", "echelon", "run", *how.split(), "--scale", "data", "train.py"], cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    found, expected = losses(done.stdout), losses(alone.stdout)
    assert [rows for _, rows in found] == [rows for _, rows in expected]
    assert [loss for loss, _ in found] == pytest.approx([loss for loss, _ in expected], rel=1e-5, abs=2e-6)
