"""With --scale fsdp a rank holds a part of each weight; what a script reads of weights is the whole."""

from pathlib import Path

from tests import warm

SCRIPT = """
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1))
weights = list(model.parameters())
optimizer = torch.optim.Adam(weights, lr=1e-2)
for x, y in DataLoader(TensorDataset(torch.randn(64, 8), torch.randn(64, 1)), batch_size=8):
    loss = nn.functional.mse_loss(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    for weight in weights:
        weight.grad.mul_(0.5)
    norm = sum(float(weight.grad.norm()) ** 2 for weight in weights)
    optimizer.step()
    with torch.no_grad():
        for weight in weights:
            weight.mul_(0.999)
    size = sum(weight.detach().abs().sum().item() for weight in weights)
    bias = weights[1].detach()
    print(f"{loss.item():.5f} {norm:.4f} {size:.4f} {bias.norm():.4f} {len(bias.tolist())} {bias.numpy().shape}")
"""


def test_listed_weights(tmp_path: Path) -> None:
    """A list that was made before training stands for the weights as they are, and numbers of them are the whole's."""
    (tmp_path / "train.py").write_text(SCRIPT)
    alone = warm.run(["train.py"], cwd=tmp_path)
    done = warm.run(["-m", "echelon", "run", "-n", "2", "--scale", "fsdp", "train.py"], cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert len(alone.stdout.splitlines()) == 8
    assert done.stdout == alone.stdout
