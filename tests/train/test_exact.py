"""`--exact V`: the same bits on any number of ranks, and what cannot have them is refused."""

import subprocess
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests import warm
from tests.tiers import some

from echelon.train import optimizer_kinds
from echelon.train.exact import tree

SCRIPT = Path(__file__).with_name("exact_script.py")
EPOCHS = "4"
HEAD = """
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
torch.manual_seed(0)
loader = DataLoader(TensorDataset(torch.randn(64, 8), torch.randint(0, 4, (64,))), batch_size=16)
"""
IN_MODEL = """
class InModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(8, 4)

    def forward(self, x, y):
        return nn.functional.cross_entropy(self.linear(x), torch.where(y > 2, -100, y))

"""
STEP = """
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for x, y in loader:
    loss = {loss}
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""


def run(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return warm.run(["-m", "echelon", "run", *words], cwd=folder, timeout=150)


def result(folder: Path, *words: str) -> str:
    done = run(folder, *words)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def by_one(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    """Return what the script prints on one rank, and where it left its checkpoint."""
    folder = tmp_path_factory.mktemp("one")
    return result(folder, "-n", "1", "--exact", "8", str(SCRIPT), EPOCHS), folder


@pytest.mark.parametrize(
    ("num_ranks", "scale"),
    some([(2, "data"), (4, "data"), (8, "data"), (4, "fsdp"), (2, "fsdp"), (1, "fsdp"), (8, "fsdp")], 7, first=4),
)
def test_same_bits(tmp_path: Path, by_one: tuple[str, Path], num_ranks: int, scale: str) -> None:
    """Weights, optimizer and random state end in the same bits, and so does every loss, also with weights spread."""
    printed = result(tmp_path, "-n", str(num_ranks), "--scale", scale, "--exact", "8", str(SCRIPT), EPOCHS)
    assert printed == by_one[0]
    assert len(printed.splitlines()[-1]) == 64


def test_workers(tmp_path: Path) -> None:
    """What workers draw as they load does not depend on who loads."""
    folders = [tmp_path / name for name in "ab"]
    for folder in folders:
        folder.mkdir()
    one, two = (
        result(folder, "-n", num, "--exact", "2", str(SCRIPT), "2", "2")
        for folder, num in zip(folders, "12", strict=True)
    )
    assert one == two


def test_ranks_change_on_the_way(tmp_path: Path, by_one: tuple[str, Path]) -> None:
    """From a checkpoint another number of ranks goes on with the same bits: 4, then 2."""
    printed = [
        result(tmp_path, "-n", str(num_ranks), "--exact", "8", str(SCRIPT), str(last_epoch))
        for num_ranks, last_epoch in ((4, 2), (2, 4))
    ]
    digest = by_one[0].splitlines()[-1]
    assert printed[-1].splitlines()[-1] == digest
    assert printed[0].splitlines()[-1] != digest


def test_number_of_shards_counts(tmp_path: Path, by_one: tuple[str, Path]) -> None:
    """Another number of shards is another order of sums, and other random numbers: the digest is no constant."""
    assert result(tmp_path, "-n", "1", "--exact", "4", str(SCRIPT), EPOCHS) != by_one[0]


@given(st.integers(0, 4), st.integers(0, 4), st.randoms(use_true_random=False))
@settings(max_examples=60, deadline=None)
def test_tree_over_processes(log_shards: int, log_processes: int, random: object) -> None:
    """Sums of neighbouring shards, summed up like neighbours, have the bits of the sum of all."""
    processes = 1 << min(log_processes, log_shards)
    torch.manual_seed(random.randrange(1 << 30))  # type: ignore[attr-defined]
    shards = [
        None if torch.rand(()) < 0.2 else torch.randn(3) * 10.0 ** torch.randint(-6, 6, ())
        for _ in range(1 << log_shards)
    ]
    each = len(shards) // processes
    locals_ = [_sum(shards[first : first + each]) for first in range(0, len(shards), each)]
    whole, again = _sum(shards), _sum(locals_)
    assert (whole is None and again is None) or torch.equal(whole, again)  # type: ignore[arg-type]


def _sum(tensors: list[torch.Tensor | None]) -> torch.Tensor | None:
    found = tree.TreeSum()
    for one in tensors:
        found.add([None if one is None else one.clone()])
    return found.local[0]


WHOLE = """
LOSSES = {
    "similarities": lambda: (model(x) @ model(x).T).logsumexp(1).mean(),
    "centred": lambda: (model(x) - model(x).mean(0)).square().mean() + model(x).std(0).sum(),
    "learned weight": lambda: nn.functional.cross_entropy(model(x), y) * (-scale.exp()).exp() + scale.exp() / 2,
    "penalty": lambda: nn.functional.cross_entropy(model(x), y) + 0.1 * sum(p.square().sum() for p in trained),
    "product": lambda: nn.functional.cross_entropy(model(x), y) * model(x).square().mean(),
    "learned shift": lambda: nn.functional.cross_entropy(model(x) + scale.exp(), y),
    "ignored": lambda: nn.functional.cross_entropy(model(x), torch.where(y > 2, -100, y)),
}
for name, loss_of in LOSSES.items():
    torch.manual_seed(0)
    model, scale = nn.Linear(8, 4), nn.Parameter(torch.zeros(()))
    trained = [*model.parameters(), scale]
    optimizer = torch.optim.SGD(trained, lr=0.1)
    for x, y in loader:
        loss = loss_of()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(name, loss.item().hex(), scale.item().hex(), model.weight.sum().item().hex())
"""


def test_losses_over_the_whole_batch(tmp_path: Path) -> None:
    """Gradients through what all samples share have the same bits too, and the losses are those of plain Python."""
    (tmp_path / "train.py").write_text(HEAD + WHOLE)
    alone = warm.run(["train.py"], cwd=tmp_path).stdout
    one, four = (result(tmp_path, "-n", number, "--exact", "4", "train.py") for number in "14")
    assert one == four
    for found, expected in zip(one.splitlines(), alone.splitlines(), strict=True):
        values = [[float.fromhex(word) for word in line.split()[-3:]] for line in (found, expected)]
        assert values[0] == pytest.approx(values[1], rel=1e-4, abs=1e-6), found


@pytest.mark.parametrize(
    ("model", "loss", "message"),
    [
        ("nn.Sequential(nn.Linear(8, 4), nn.BatchNorm1d(4))", "nn.functional.cross_entropy(model(x), y)",
         "changes its buffer"),
        ("InModel()", "model(x, y)", "the mean in this loss leaves targets out"),
        ("nn.Linear(8, 4)", "nn.functional.cross_entropy(model(x), y, reduction='none')", "an entry for each sample"),
    ],
)  # fmt: skip
def test_what_cannot_be_exact(tmp_path: Path, model: str, loss: str, message: str) -> None:
    """What depends on other shards inside of a model stops the run, with the reason."""
    text = HEAD + IN_MODEL + f"model = {model}\n" + STEP.format(loss=loss)
    if "none" in loss:
        text = text.replace("loss.backward()", "loss.backward(torch.ones(16))")
    (tmp_path / "train.py").write_text(text)
    done = run(tmp_path, "-n", "2", "--no-check", "--exact", "4", "train.py")
    assert done.returncode == 2
    assert message in done.stderr
    assert "way out" in done.stderr


OPTIMIZERS = """
class Normed(torch.optim.SGD):
    def step(self):
        for weight in self.param_groups[0]["params"]:
            weight.grad /= weight.grad.norm()
        super().step()

import sys
OTHERS = {"Normed": Normed, "Fused": lambda *args, **wishes: torch.optim.SGD(*args, **wishes, fused=True)}
for name in sys.argv[1:]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 31), nn.Tanh(), nn.Linear(31, 4))
    optimizer = (OTHERS.get(name) or getattr(torch.optim, name))(model.parameters(), lr=0.01)
    for x, y in loader:
        loss = nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
    print(name, loss.item().hex(), *[one.sum().item().hex() for one in model.state_dict().values()])
"""


@pytest.mark.tier("all")
def test_every_optimizer(tmp_path: Path) -> None:
    """Where weights are spread each steps with the same bits, and one that may mix their elements is refused there."""
    (tmp_path / "train.py").write_text(HEAD + OPTIMIZERS)
    names = [kind.__name__ for kind in optimizer_kinds.ELEMENTWISE]
    expected = result(tmp_path, "-n", "1", "--exact", "4", "train.py", *names, "Normed")
    assert result(tmp_path, "-n", "2", "--scale", "data", "--exact", "4", "train.py", *names, "Normed") == expected
    done = run(tmp_path, "-n", "2", "--scale", "fsdp", "--exact", "4", "train.py", *names, "Normed")
    assert done.stdout.splitlines() == expected.splitlines()[:-1]
    assert done.returncode == 2
    assert "Normed may mix the elements of a weight; an exact run" in done.stderr
    assert "way out: echelon run --scale data" in done.stderr
    done = run(tmp_path, "-n", "2", "--scale", "fsdp", "--exact", "4", "train.py", "Fused")
    assert done.returncode == 2
    assert "SGD(fused=True) rounds the last elements of a shard differently" in done.stderr


@pytest.mark.parametrize(
    ("words", "message", "hint"),
    [
        (("-n", "2", "--exact", "6"), "must be a power of two", "--exact 4   or --exact 8"),
        (("-n", "3", "--exact", "8"), "1, 2, 4 or 8 ranks, but the run has 3", "echelon run -n 2 --exact 8"),
        (("-n", "2", "--exact", "8", "--sync-bn"), "--exact does not go with --sync-bn", "remove --sync-bn"),
        (("-n", "2", "--exact", "8", "--scale", "off"), "is for a script that echelon scales", "remove --scale off"),
        (("-n", "2", "--exact", "32"), "has 16 samples, and --exact 32 cuts it", "--exact 16"),
        (("-n", "2", "--exact", "none"), "a whole number of at least 2", "--exact 2"),
    ],
)  # fmt: skip
def test_bad_numbers(tmp_path: Path, words: tuple[str, ...], message: str, hint: str) -> None:
    """Numbers that do not fit are told with both of them and the repair."""
    text = HEAD + "model = nn.Linear(8, 4)\n" + STEP.format(loss="nn.functional.cross_entropy(model(x), y)")
    (tmp_path / "train.py").write_text(text)
    done = run(tmp_path, *words, "train.py")
    assert done.returncode == 2
    assert message in done.stderr
    assert hint in done.stderr
    assert "Traceback" not in done.stderr


def test_script_that_shares_the_work_itself(tmp_path: Path) -> None:
    """What is asked for and cannot be is never left out in silence."""
    (tmp_path / "train.py").write_text(
        "import torch\nimport torch.distributed as dist\ndist.init_process_group('gloo')\nloss.backward()\n"
    )
    done = run(tmp_path, "-n", "2", "--exact", "8", "train.py")
    assert done.returncode == 2
    assert "  hint: remove it\n" in done.stderr
    assert "train.py distributes itself" in done.stderr
    (tmp_path / "train.py").write_text("import echelon\nrun = echelon.start()\n")
    done = run(tmp_path, "-n", "2", "--exact", "8", "train.py")
    assert "  hint: set it in the script: echelon.start(exact=8)\n" in done.stderr
