"""Without any check, a model's losses are those of one device, or all ranks refuse it and name the operation."""

from pathlib import Path

import pytest
from tests import warm
from tests.tiers import some
from tests.train import row_cases
from tests.train.strategies import ranks


@pytest.mark.parametrize("num_ranks", some([2, 3], 1))
def test_every_case(num_ranks: int) -> None:
    """Draws, mixed samples, totals, inner steps, buffers, time-first layers, arrays and lists."""
    told = ranks.run(num_ranks, row_cases.outcomes)
    wrong = []
    for name, (_, _, refusal) in row_cases.CASES.items():
        of_ranks = [one[name] for one in told]
        if refusal:
            is_right = all(isinstance(one, str) and refusal in one for one in of_ranks) and len(set(of_ranks)) == 1
            expected: object = refusal
        else:
            expected = pytest.approx(row_cases.train(name), rel=1e-4)
            is_right = all(one == expected for one in of_ranks)
        if not is_right:
            wrong.append(f"{name}: {of_ranks}, expected {expected}")
    assert not wrong, "\n".join(wrong)


TIME_FIRST = """
import torch
from torch import nn
torch.manual_seed(0)
class Reader(nn.Module):
    def __init__(self):
        super().__init__()
        self.cell, self.last = nn.GRU(8, 8), nn.Linear(8, 3)
    def forward(self, x):
        return self.last(self.cell(x)[0])
x, y, model = torch.randn(24, 5, 8), torch.randint(0, 3, (24,)), Reader()
optimizer = torch.optim.SGD(model.parameters(), 0.05)
for a, b in torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, y), batch_size=6):
    loss = nn.functional.cross_entropy(model(a.transpose(0, 1))[-1], b)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"{loss.item():.4f}")
"""


def test_batches_of_a_loader_with_time_first(tmp_path: Path) -> None:
    """A batch that the script turns for a layer that expects time first is shared by its samples, in dim 1."""
    (tmp_path / "train.py").write_text(TIME_FIRST)
    one, two = (warm.run(["-m", "echelon", "run", *words, "train.py"], cwd=tmp_path)
                for words in (("-n", "1"), ("-n", "2", "--no-check")))  # fmt: skip
    assert (two.returncode, two.stdout) == (0, one.stdout), two.stderr
    assert "scaled over 2 ranks" in two.stderr
    assert two.stdout.count("\n") == 4
