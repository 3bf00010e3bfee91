"""A mean over classes is divided by the targets that count, also where only one rank has some that do not."""

from pathlib import Path

import pytest
from tests.train.test_options import numbers, run

SCRIPT = """
import sys
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

kind = sys.argv[1]


class Halved(nn.Linear):
    def forward(self, x):
        class Half(torch.autograd.Function):
            @staticmethod
            def forward(ctx, x):
                return x.clone()

            @staticmethod
            def backward(ctx, gradient):
                return gradient * 0.5

        return Half.apply(super().forward(x))


torch.manual_seed(0)
inputs, targets = torch.randn(64, 5, 8), torch.randint(0, 4, (64, 5))
targets[40, 2:] = -100  # in one batch, of one rank
loader = DataLoader(TensorDataset(inputs, targets), batch_size=8)
model = (Halved if kind == "function" else nn.Linear)(8, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
dist = getattr(torch, "distributed")  # not so that echelon thinks that the script shares the work
calls, reduce = [], dist.all_reduce
delta = torch.zeros(8, requires_grad=True)


def counted(tensor, *args, **kwargs):
    calls.append(tensor.numel())
    return reduce(tensor, *args, **kwargs)


dist.all_reduce = counted
if kind == "hook":
    model.weight.register_hook(lambda gradient: gradient * 2)
for step, (x, y) in enumerate(loader):
    x, y = x[:, 1:], y[:, 1:].contiguous()
    flat = y.view(-1).long()
    if kind == "written" and step == 2:
        y[:4, 1] = -100  # through another view of the same elements
    if kind == "written" and step == 3:
        flat = torch.where(flat > 2, flat, -100)
    calls.clear()
    scores = model(x + delta if kind == "leaf" else x)
    loss = nn.functional.cross_entropy(scores.flatten(0, 1), flat)
    if kind == "sum":
        loss = loss + 0.1 * model.weight.square().mean()
    print(len(calls), file=sys.stderr)
    if step in (1, 5):
        print(loss.item())
    optimizer.zero_grad(set_to_none=kind != "zeros")
    (loss * 0.5).backward() if kind == "plain" else loss.backward()
    optimizer.step()
    print(loss.item())
if kind == "leaf":
    print(delta.grad.square().sum().item())
print(sum(one.square().sum().item() for one in model.parameters()))
"""


@pytest.mark.parametrize(
    ("kind", "num_ranks", "waits"),
    [
        ("plain", 2, "00000000"),  # gradients are multiplied once
        ("written", 3, "00110000"),  # it is not known what is in a tensor that was written to
        ("sum", 2, "10000100"),  # the first is waited for; then the ranks ask as they load
        ("hook", 2, "00000000"),  # a hook on a weight waits for the mean of all ranks
        ("function", 2, "00000100"),  # what sees gradients early must see the right ones
        ("leaf", 2, "00000100"),
        ("zeros", 2, "00000100"),
    ],
)
def test_targets_that_do_not_count(tmp_path: Path, kind: str, num_ranks: int, waits: str) -> None:
    """The losses and weights are those of one device, and a loss waits for other ranks only where it must."""
    (tmp_path / "signs.py").write_text(SCRIPT)
    alone = numbers(run(tmp_path, "signs.py", kind))
    done = run(
        tmp_path, "-m", "echelon", "run", "-n", str(num_ranks), "--scale", "data", "--no-check", "signs.py", kind
    )
    assert numbers(done) == pytest.approx(alone, rel=1e-5)
    assert "".join(line for line in done.stderr.splitlines() if line.isdigit()) == waits
