"""What a model gives, and what hooks see of it, is that of one device, or the run says that it is not."""

import subprocess
from pathlib import Path

import pytest
from tests import warm

SCRIPT = """
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
torch.manual_seed(0)
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.head = nn.Linear(3, 6), nn.Linear(6, 2)
    def forward(self, x):
        h = torch.relu(self.body(x))
        RETURN
model = Model()
HOOK
optimizer = torch.optim.SGD(model.parameters(), lr=1e-5)
places = torch.arange(48.0)[:, None]
for (x,) in DataLoader(TensorDataset(torch.cat([torch.randn(48, 2), places], 1)), batch_size=12):
    out = model(x)
    loss = LOSS
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"loss {loss.item():.6f}")
"""
ALL_ROWS = {"RETURN": "return self.head(h)", "HOOK": "", "LOSS": "out.pow(2).mean()"}


def run(folder: Path, ranks: int, *options: str, **parts: str) -> "subprocess.CompletedProcess[str]":
    text = SCRIPT
    for name, part in {**ALL_ROWS, **parts}.items():
        text = text.replace(name, part)
    (folder / "train.py").write_text(text)
    words = ["-m", "echelon", "run", "-n", str(ranks), *options, "train.py"] if ranks > 1 else ["train.py"]
    return warm.run(words, cwd=folder)


@pytest.mark.parametrize(
    ("output", "told"),
    [
        (
            "return self.head(h)[x[:, 2] % 12 < 3]",
            "Model returns tensors of other shapes on other ranks: (3, 2), (0, 2)",
        ),
        ("return [self.head(row) for row in h[x[:, 2] % 12 < 5]]", "Model returns 0 or 5 tensors, by rank"),
    ],
    ids=["no rows on a rank", "a list by samples"],
)
def test_rows_that_cannot_be_put_together(tmp_path: Path, output: str, told: str) -> None:
    """Outputs that depend on the samples, and are none on some rank, are refused with the reason, and nobody waits."""
    done = run(tmp_path, 2, RETURN=output, LOSS="sum(one.pow(2).sum() for one in out)")
    assert done.returncode == 2, done.stderr
    assert told in done.stderr
    assert "the number of rows depends on the samples" in done.stderr


def test_rows_that_a_rank_selects(tmp_path: Path) -> None:
    """Rows that a model selects are those of one device, also where ranks select as many as they have, or alike."""
    parts = {"RETURN": "return self.head(h)[x[:, 0] > -0.4]", "LOSS": "out.pow(2).sum() / len(out)"}
    done = run(tmp_path, 2, **parts)
    assert done.returncode == 0, done.stderr
    alone = run(tmp_path, 1, **parts)
    losses, of_one = ([float(loss) for loss in said.stdout.split()[1::2]] for said in (done, alone))
    assert losses == pytest.approx(of_one, rel=1e-5)


@pytest.mark.parametrize("which", ["forward", "full_backward"])
def test_hook_is_noted(tmp_path: Path, which: str) -> None:
    """A hook of the script gets the samples of its rank, or their gradients: the run says which hook, once."""
    done = run(tmp_path, 2, HOOK=f"model.body.register_{which}_hook(lambda module, given, out: None)")
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("note: a hook of Linear, at train.py:14 gets the samples of its rank") == 1
    assert "a hook of" not in run(tmp_path, 2).stderr


@pytest.mark.parametrize("parts", [
    {"nn.Linear(3, 6)": "nn.Sequential(nn.Linear(3, 6), nn.BatchNorm1d(6))"},
    {"self.body(x))": "nn.functional.batch_norm(self.body(x), None, None, training=True))"},
], ids=["as a module", "as a function"])  # fmt: skip
def test_batch_norm_is_noted_without_the_check(tmp_path: Path, parts: dict[str, str]) -> None:
    """Losses are not those of one device: a line says so where no comparison does, unless --sync-bn is given."""
    for options, count in (([], 1), (["--sync-bn"], 0)):
        done = run(tmp_path, 2, "--no-check", *options, **parts)
        assert done.returncode == 0, done.stderr
        assert done.stderr.count("note: BatchNorm takes each rank's own statistics") == count


KEPT = {
    "mean": ("self.kept = h.abs().mean()", "model.kept"),
    "sum": ("self.kept = h.abs().sum()", "model.kept / 12"),
    "rows": ("self.body.kept = h", "model.body.kept.var(0).sum()"),
    "in a dict": ("self.kept = {'a': h.square().mean(), 'b': h.sum()}", "model.kept['a'] + model.kept['b'] / 99"),
    "in a list": ("self.kept = [h[:, 0].mean(), h[:, 1].mean()]", "sum(model.kept)"),
    "unused": ("self.kept = h.norm()", "0"),
}


@pytest.mark.parametrize("case", KEPT)
def test_tensor_that_a_model_keeps_for_the_loss(tmp_path: Path, case: str) -> None:
    """Without any comparison, what forward() keeps in attributes is that of the whole batch, also with unequal rows."""
    keep, use = KEPT[case]
    parts = {"RETURN": f"{keep}; return self.head(h)", "LOSS": f"out.pow(2).mean() + {use}"}
    parts["batch_size=12"] = "batch_size=11"
    alone, done = run(tmp_path, 1, **parts), run(tmp_path, 2, "--no-check", **parts)
    assert done.returncode == 0, done.stderr
    losses, of_one = ([float(loss) for loss in said.stdout.split()[1::2]] for said in (done, alone))
    assert losses == pytest.approx(of_one, rel=1e-5)


def test_kept_tensor_that_mixes_samples(tmp_path: Path) -> None:
    """A loss of the whole batch that is no sum over samples, as for balanced experts, is refused where it is used."""
    parts = {"RETURN": "self.kept = h.mean(0).pow(2).sum(); return self.head(h)", "LOSS": "out.mean() + model.kept"}
    done = run(tmp_path, 2, "--no-check", **parts)
    assert done.returncode == 2, done.stderr
    assert "Model.kept, which forward() keeps, is not the one of the whole batch: Model mixes" in done.stderr
    assert "in pow(), at train.py:12" in done.stderr
    assert "at train.py:19" in done.stderr
    done = run(tmp_path, 2, "--no-check", "--exact", "4", **parts)
    assert done.returncode == 2, done.stderr
    assert "whole batch: with --exact echelon computes each shard of a batch separately" in done.stderr


def test_rank_that_dies_while_another_waits(tmp_path: Path) -> None:
    """The error of the exchange is no error of the model: the ranks start again."""
    is_doomed = "step == 5 and env['RA' + 'NK'] == '1' and env['TORCHELASTIC_RESTART_COUNT'] == '0'"
    kill = f"if {is_doomed}:\n            os.kill(os.getpid(), 9)\n        "
    parts = {"RETURN": f"{kill}return self.head(h)", "HOOK": "import os; env = os.environ; step = 0"}
    loader = "for (x,) in DataLoader(TensorDataset(torch.cat([torch.randn(48, 2), places], 1)), batch_size=12):"
    parts |= {loader: "for step, x in enumerate(torch.randn(48, 3).split(7)):"}
    done = run(tmp_path, 2, "--max-restarts", "1", **parts)
    assert done.returncode == 0, done.stderr
    assert "starting all ranks again" in done.stderr
    assert "fails on the rows" not in done.stderr


def test_model_that_fails_for_some_of_its_rows(tmp_path: Path) -> None:
    """Without the comparison of the first step a line says once that nothing was tried, and what the model raised."""
    few = "if len(x) != 6:\n            raise ValueError('few rows')\n        "
    parts = {"RETURN": f"{few}return self.head(h)", "(48, 2)": "(144, 2)"}
    done = run(tmp_path, 2, "--no-check", **parts, **{"arange(48.0)": "arange(144.0)"})
    assert done.returncode == 0, done.stderr
    told = "note: echelon cannot tell whether Model treats each sample by itself: it fails with some of them: few rows"
    assert done.stderr.count(told) == 1


def test_tensor_of_the_whole_batch_beside_a_single_sample(tmp_path: Path) -> None:
    """A rank with one sample adds two rows to it: they may be the batch's or the sample's, so the model is refused."""
    parts = {"RETURN": "return self.head(h) + shift", "HOOK": "shift = torch.ones(2, 2)"}
    done = run(tmp_path, 2, **parts, **{"batch_size=12": "batch_size=2"})
    assert done.returncode == 2, done.stderr
    assert "Model mixes the samples of its batch in add(), at train.py:12" in done.stderr


def test_model_of_fewer_samples_than_ranks(tmp_path: Path) -> None:
    """What a model computes of a small last batch enters another model with the rows that the ranks have of it."""
    parts = {"LOSS": "(model.head(torch.relu(model.body(x * x.flip(0)))) - out).pow(2).mean()"}
    alone, done = [run(tmp_path, ranks, **parts, **{"batch_size=12": "batch_size=5"}) for ranks in (1, 4)]
    assert done.returncode == 0, done.stderr
    losses, of_one = ([float(loss) for loss in said.stdout.split()[1::2]] for said in (done, alone))
    assert losses == pytest.approx(of_one, rel=1e-5)


def test_error_of_the_script(tmp_path: Path) -> None:
    """A model that fails on one device fails in the same way, and no frame of echelon stands in the traceback."""
    done = run(tmp_path, 2, RETURN="return self.head(h) @ x")
    assert done.returncode == 1
    assert "mat1 and mat2 shapes cannot be multiplied (6x2 and 6x3)" in done.stderr
    assert "During handling" not in done.stderr
    assert "echelon/train" not in done.stderr


def test_error_that_is_its_own_cause(tmp_path: Path) -> None:
    """`raise error from error` ends the run as any other error does."""
    output = "error = ValueError('of the script'); raise error from error"
    done = run(tmp_path, 2, RETURN=output)
    assert done.returncode == 1
    assert "ValueError: of the script" in done.stderr


def test_doubt_about_a_number_is_told_once(tmp_path: Path) -> None:
    """Each rank draws its own numbers, and beside it stands a number that is 0 in each step: no call shows a kind."""
    output = "y = self.head(h); return (y * torch.poisson(torch.ones_like(y))).pow(2).mean(), y.mean() * 0"
    done = run(tmp_path, 2, RETURN=output, LOSS="out[0] + out[1]")
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("Model returns a number (output 0); echelon cannot tell") == 1
