"""`echelon prove` with a script that calls `run.parallelize()`: one device is asked for no axes, and is the oracle."""

from pathlib import Path
from subprocess import CompletedProcess

import pytest
from tests import warm
from tests.tiers import in_all

SCRIPT = """
import sys

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import echelon
from echelon import Strategy


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.mlp = nn.LayerNorm(8), nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 8))
        self.dropout = nn.Dropout(0.1)

    def forward(self, x):
        return x + self.dropout(self.mlp(self.norm(x)))


torch.manual_seed(0)
run = echelon.start(EXACT)
model = nn.Sequential(nn.Linear(4, 8), nn.Sequential(Block(), Block()), nn.Linear(8, 3))
loader = DataLoader(TensorDataset(torch.randn(64, 4), torch.randint(0, 3, (64,))), batch_size=16, shuffle=True)
strategy = eval(sys.argv[1])
trained = run.parallelize(model, strategy, loss=nn.functional.cross_entropy, sample=torch.zeros(16, 4))
slower = lambda name, weight: {"lr": 1e-3} if "norm" in name else {}
trained.optimize(torch.optim.AdamW, lr=LEARNING_RATE, groups=slower)
for inputs, targets in BATCHES:
    trained.step(inputs, targets, clip=0.5, rows=ROWS)
"""
RIGHT = {"EXACT": "", "LEARNING_RATE": "1e-2", "BATCHES": "loader", "ROWS": "False"}


def prove(folder: Path, num_ranks: int, strategy: str, **changed: str) -> "CompletedProcess[str]":
    """Return what the command says."""
    script = SCRIPT
    for name, code in {**RIGHT, **changed}.items():
        script = script.replace(name, code)
    (folder / "train.py").write_text(script)
    words = ["-m", "echelon", "prove", "-n", str(num_ranks), "--steps", "4", "train.py", strategy]
    done = warm.run(words, cwd=folder)
    if "VersionError: " in done.stderr:
        pytest.skip(done.stderr.partition("VersionError: ")[2])  # only under an older PyTorch: `make torches`
    return done


@pytest.mark.parametrize(
    ("num_ranks", "strategy", "how", "cut"),
    [
        in_all(2, "Strategy(replicate=2)", {"BATCHES": "trained.loader(loader)", "ROWS": "True"}, ""),
        (2, "Strategy(shard=2, accumulation=2)", {}, ", 16 of 16 parameters sharded"),
        in_all(2, 'Strategy(tensor=2, checkpointing="full")', {}, ", 6 of 16 parameters sharded"),
        in_all(
            4, 'Strategy(pipeline=2, shard=2, precision="bf16", accumulation=2)', {}, ", 16 of 16 parameters sharded"
        ),
    ],
)
def test_same_training(tmp_path: Path, num_ranks: int, strategy: str, how: dict[str, str], cut: str) -> None:
    """Whatever the strategy cuts is compared as a whole; learning rates of groups too."""
    done = prove(tmp_path, num_ranks, strategy, **how)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"equal within rounding: 4 steps on {num_ranks} ranks{cut}\n" in done.stdout + "\n"


def test_same_bits(tmp_path: Path) -> None:
    """What `echelon.start(exact=4)` promises is what is found."""
    done = prove(tmp_path, 2, "Strategy(shard=2)", EXACT="exact=4")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "equal to the bit: 4 steps on 2 ranks" in done.stdout


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        in_all({"LEARNING_RATE": "1e-2 * run.world.size"}, "learning rate"),
        ({"ROWS": "True", "BATCHES": "(torch.manual_seed(run.world.rank) and loader)"}, "draws its own data"),
    ],
    ids=["rate", "other-batches"],
)
def test_another_training(tmp_path: Path, changed: dict[str, str], said: str) -> None:
    """What a script does with its ranks beside the strategy is found."""
    done = prove(tmp_path, 2, "Strategy(shard=2)", **changed)
    assert done.returncode == 1, done.stdout + done.stderr
    assert "WRONG" in done.stdout
    assert said in done.stdout.partition("WRONG")[2]


def test_other_ranks_than_the_strategy_has(tmp_path: Path) -> None:
    """The strategy's own error is shown; one rank was no reason for it."""
    done = prove(tmp_path, 2, "Strategy(shard=4)")
    assert done.returncode == 1
    assert "= 4, but the number of ranks is 2" in done.stderr
    assert "Traceback" not in done.stderr
