"""`echelon run --scale tensor`, `context`, `pipeline`: the numbers of one device, and files that one device loads."""

import json
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from tests import warm
from tests.tiers import pick, some

from echelon.cli.options import scan
from echelon.cli.run import read_job
from echelon.errors import UsageError
from echelon.orders.scale import KINDS, ScaleOptions
from echelon.train import fsdp, optimizer_kinds
from echelon.train.check import signature
from echelon.train.global_tensors.tensors import tensors_of
from echelon.train.parallelism import choice
from echelon.train.scaling_error import ScalingError
from echelon.train.strategies import versions

HERE = Path(__file__).parent
PATIENCE_SECONDS = 300
DRAWN, STILL = ("drawn",), ("still", "outside")
WAYS = {"tensor": DRAWN, "context": DRAWN, "pipeline": STILL}
"""Where dropout draws what it draws on one device, it is on, and the model computes its loss."""
if versions.numbers() < (2, 10):  # `make torches`
    del WAYS["context"]


def python(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Run a script of this folder as Python does, or by `-m echelon …`."""
    for path in HERE.glob("*.py"):
        shutil.copy(path, folder)
    return warm.run(words, cwd=folder, timeout=PATIENCE_SECONDS)


def scaled(folder: Path, num_ranks: int, scale: str, *words: str) -> subprocess.CompletedProcess[str]:
    return python(folder, "-m", "echelon", "run", "-n", str(num_ranks), "--scale", scale, *words)


def numbers(done: subprocess.CompletedProcess[str]) -> list[float]:
    assert done.returncode == 0, done.stdout + done.stderr
    printed = re.sub(r"\[Gloo\] Rank .*", "", done.stdout)  # PyTorch 2.9 says whom it is connected to
    return [float(number) for number in re.findall(r"[\d.]+", printed)]


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return folders with two runs of one device each, the second from the snapshot of the first."""
    for words in (DRAWN, STILL):
        folder = tmp_path_factory.getbasetemp() / "-".join(words)
        folder.mkdir()
        for name in ("first", "second"):
            (folder / f"{name}.txt").write_text(python(folder, "script.py", *words).stdout)
            for file in ("snapshot.pt", "model.pt"):
                shutil.copy(folder / file, folder / f"{name}-{file}")
    return tmp_path_factory.getbasetemp()


def read(folder: Path, name: str) -> list[float]:
    return [float(number) for number in re.findall(r"[\d.]+", (folder / f"{name}.txt").read_text())]


def assert_close(ours: Any, theirs: Any) -> None:
    """Compare what two files hold: plain tensors of the same names and values, to rounding."""
    if isinstance(theirs, torch.Tensor):
        assert type(ours) is torch.Tensor
        torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=5e-4)
    elif isinstance(theirs, dict):
        assert list(ours) == list(theirs)
        for key in theirs:
            assert_close(ours[key], theirs[key])
    elif isinstance(theirs, list):
        for one, other in zip(ours, theirs, strict=True):
            assert_close(one, other)
    else:
        assert ours == theirs or ours == pytest.approx(theirs)


WORLDS = [pair for pair in (("tensor", 4), ("context", 2), ("pipeline", 4), ("tensor", 2)) if pair[0] in WAYS]


@pytest.mark.parametrize(("scale", "num_ranks"), pick(WORLDS[2:3], all=WORLDS))
def test_numbers_and_files_of_one_device(tmp_path: Path, alone: Path, scale: str, num_ranks: int) -> None:
    """Losses, norms, hits, evaluation, states that are put back; from a snapshot of one device, and to one."""
    folder = alone / "-".join(WAYS[scale])
    shutil.copy(folder / "first-snapshot.pt", tmp_path / "snapshot.pt")
    done = scaled(tmp_path, num_ranks, scale, "script.py", *WAYS[scale])
    assert f"(--scale {scale})" in done.stderr
    assert "first step: equals that of one device" in done.stderr
    assert numbers(done) == pytest.approx(read(folder, "second"), rel=1e-4)
    for file in ("model.pt", "snapshot.pt"):
        ours, theirs = (torch.load(path, weights_only=True) for path in (tmp_path / file, folder / f"second-{file}"))
        assert_close(ours, theirs)


@pytest.mark.parametrize("scale", some(list(WAYS), 3))
def test_a_loop_of_its_own(tmp_path: Path, scale: str) -> None:
    """Accumulation, a fused optimizer, weights kept in a list, their average, norms by hand and sampling are right."""
    words = ["still"] if scale == "pipeline" else ["gradients", "average"]
    expected = numbers(python(tmp_path, "loop.py", *words))
    done = scaled(tmp_path, 2, scale, "loop.py", "compiled", *words)
    assert "note: echelon leaves torch.compile() out" in done.stderr
    assert numbers(done) == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize(
    ("scale", "num_ranks"),
    some([("data", 2), ("tensor", 4), ("pipeline", 4), *((scale, 2) for scale in WAYS)], 7, first=4),
)
def test_layers_of_pytorch_and_weights_of_the_model_itself(tmp_path: Path, scale: str, num_ranks: int) -> None:
    """Attention that is no nn.Linear, and what all stages of a pipeline use, have the numbers of one device; so have as
    many tokens as samples, which are no mask."""
    words = ["encoder.py", *WAYS.get(scale, STILL)]
    expected = numbers(python(tmp_path, *words))
    done = scaled(tmp_path, num_ranks, scale, *words)
    assert "first step: equals that of one device" in done.stderr
    assert numbers(done) == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize("scale", some([scale for scale in WAYS if scale != "pipeline"], 2))
def test_losses_in_many_forms(tmp_path: Path, scale: str) -> None:
    """A mean over what is to be learned is no mean of the ranks' means, which it is in PyTorch 2.13."""
    expected = numbers(python(tmp_path, "losses.py"))
    assert len(expected) == 12
    assert numbers(scaled(tmp_path, 2, scale, "losses.py")) == pytest.approx(expected, rel=1e-5)


@pytest.mark.skipif(versions.numbers() < (2, 13), reason="earlier versions refuse some of them: docs/strategies.md")
@pytest.mark.parametrize("scale", some(["tensor", "context"], 2))
def test_attention_in_many_forms(tmp_path: Path, scale: str) -> None:
    """PyTorch's own, with masks, which are cut where they differ, and with dropout; and one matrix for three."""
    expected = numbers(python(tmp_path, "attention.py"))
    assert len(expected) == 28
    assert numbers(scaled(tmp_path, 2, scale, "attention.py")) == pytest.approx(expected, rel=1e-4)


def test_fully_shard_needs_a_later_version_on_a_cpu() -> None:
    """It would end in an AttributeError of PyTorch's own."""
    with pytest.raises(ScalingError, match=r"PyTorch 2\.8\.0\+cpu cannot do on a CPU\n  way out: use PyTorch 2\.13"):
        fsdp.refuse_old(torch.device("cpu"), "2.8.0+cpu")
    fsdp.refuse_old(torch.device("cpu"), "2.9.0")
    fsdp.refuse_old(torch.device("cuda"), "2.6.0")


@pytest.mark.tier("all")
@pytest.mark.parametrize(
    "scale", some(["fsdp", "tensor"], 2) if versions.numbers() >= versions.FULLY_SHARD_ON_CPU else ["tensor"]
)
def test_every_optimizer(tmp_path: Path, scale: str) -> None:
    """Also those whose steps PyTorch refuses with weights that are cut, such as Rprop, step as one device does."""
    words = ["optimizers.py", "still", *[kind.__name__ for kind in optimizer_kinds.ELEMENTWISE], "Counted"]
    expected = numbers(python(tmp_path, *words, "none"))
    expected, untrained = expected[:-4], expected[-4:]
    assert len(expected) == 4 * len(words[2:])
    for first in range(0, len(expected), 4):  # each moves by more than a hundred times what is tolerated
        assert expected[first : first + 4] != pytest.approx(untrained, rel=1e-3)
    assert numbers(scaled(tmp_path, 2, scale, *words)) == pytest.approx(expected, rel=1e-5)


@pytest.mark.skipif(versions.numbers() < versions.FULLY_SHARD_ON_CPU, reason="fully_shard on a CPU needs PyTorch 2.9")
def test_closure_of_an_optimizer_that_needs_all_weights(tmp_path: Path) -> None:
    """Weights are spread in the midst of its first step, and it would go on with those that nothing changes."""
    (tmp_path / "train.py").write_text(CLOSURE)
    done = scaled(tmp_path, 2, "fsdp", "train.py")
    assert done.returncode == 2
    assert "LBFGS computes with all weights as one vector" in done.stderr
    assert "trained" not in done.stdout


@dataclass(frozen=True)
class Batch:
    """What cannot be changed can be looked at."""

    tokens: torch.Tensor
    mask: torch.Tensor


@pytest.mark.parametrize("beside", [float("-inf"), torch.finfo().min, 1e12, float("nan")])
def test_batches_that_differ_are_seen_beside_anything(beside: float) -> None:
    """A mask tells nothing, and a large number hides nothing; what differs in its last digits is the same."""
    mask = torch.full((8, 8), beside).triu(1)
    one, other = (torch.randint(1000, (64, 512), generator=torch.Generator().manual_seed(seed)) for seed in (1, 2))
    noise = one.float() * (1 + 1e-7)

    def differ(first: torch.Tensor, second: torch.Tensor) -> bool:
        signed = (signature.of_tensors(tensors_of(([Batch(each, mask)], {}))) for each in (first, second))
        every = torch.stack([signature.numbers(each, torch.device("cpu")) for each in signed])
        return not signature.are_equal(every.max(0).values.tolist())

    assert differ(one, other)
    assert differ(one, one.flip(1))
    assert differ(one[:1, :1], one[:1, :1] + 1)
    assert not differ(one, one.clone())
    assert not differ(one.float(), noise)


@pytest.mark.tier("all")
def test_proved(tmp_path: Path) -> None:
    """`echelon prove` compares each with one device, tensor by tensor, and finds them equal."""
    words = ["prove", "-n", "2", "--steps", "3", "--scale", ",".join(WAYS), "--json", "script.py", "outside"]
    done = python(tmp_path, "-m", "echelon", *words)
    assert done.returncode == 0, done.stdout + done.stderr
    for run in json.loads(done.stdout)["runs"]:
        assert run["verdict"] == "equal within rounding", run["scale"]
        assert {(row["kind"], row["step"]) for row in run["tensors"]} >= {("gradients", 2), ("states", 3)}
        assert (run["had"]["num_sharded"] > 0) == (run["scale"] == "tensor")


REFUSED = {
    "tensor": {
        "no blocks": "--scale tensor needs blocks that repeat, but Sequential has none",
        "unknown layers": "echelon recognizes no attention and no MLP in the blocks of Odd",
        "heads": "h.1.attn.n_head is 3, which is not a multiple of the tensor axis, 2",
        "lbfgs": "LBFGS computes with all weights as one vector",
        "lbfgs by closure": "LBFGS computes with all weights as one vector",
        "adafactor": "Adafactor computes with means over rows and columns of whole weights",
        "scaler": "the script scales its loss for fp16 (GradScaler)",
        "saved whole": "torch.save() got a whole GPT, but every rank has only a part of it",
        "other batches": "rank 1 calls the model with another batch than rank 0",
        "other targets": "the ranks computed different losses for the same batch",
    },
    "context": {
        "length": "a sequence has 7 tokens, which is not a multiple of the context axis, 2",
        "images": "Sequential gets a tensor of shape (4, 3, 8, 8) as its first argument",
        "batch norm": "1 is a BatchNorm, which needs the statistics of all tokens",
    },
    "pipeline": {
        "no blocks": "--scale pipeline needs blocks that repeat, but Sequential has none",
        "lbfgs": "LBFGS computes with all weights as one vector",
        "batch norm in blocks": "0.norm is a BatchNorm, which needs the statistics of the whole batch",
        "a weight": "the script reads GPT.",
        "a gradient": "the script reads the gradient of GPT.",
        "a copy": "the script reads GPT.",
        "a buffer": "GPT changes its buffer ln_f.count in its forward pass, but only one rank's copy changes",
        "a part": "the script calls Block alone, but it is a part of GPT, whose layers are on several ranks",
        "an input": "Sequential gets an input that needs a gradient",
        "saved whole": "torch.save() got a whole GPT",
    },
}


@pytest.mark.parametrize("scale", some(list(WAYS), 4, first=2))
def test_what_cannot_be_split_is_refused(tmp_path: Path, scale: str) -> None:
    """Each model or training that would be another one ends with its reason and a way out."""
    cases = REFUSED[scale]
    quoted = [name.replace(" ", "-") for name in cases]
    done = scaled(tmp_path, 2, scale, "--no-check", "refused.py", *quoted)
    assert done.returncode == 0, done.stdout + done.stderr
    for name, reason in cases.items():
        assert f"{name}: echelon.ScalingError: {reason}" in done.stdout
    assert done.stdout.count("\n  way out: ") == len(cases)


def test_a_refusal_ends_the_run(tmp_path: Path) -> None:
    """A person sees the reason once, and the way out."""
    (tmp_path / "train.py").write_text(PLAIN)
    done = scaled(tmp_path, 2, "tensor", "--show", "none", "train.py")
    assert done.returncode == 2
    assert "echelon: the script cannot be scaled\n" in done.stderr
    assert done.stderr.count("way out: ") == 1
    assert "Traceback" not in done.stderr
    assert re.search(r"^  │   at train.py:\d+: \S", done.stderr, re.MULTILINE)


def test_place_of_a_refusal_is_the_scripts_own_line(tmp_path: Path) -> None:
    """Where a package calls the model, the line that says most is the script's."""
    (tmp_path / "site-packages").mkdir()
    (tmp_path / "site-packages" / "loops.py").write_text("def call(function, *args):\n    return function(*args)\n")
    calls = PLAIN.replace("model(", "loops.call(model, ")
    script = "import sys\n\nsys.path.append('site-packages')\nimport loops\n" + calls
    (tmp_path / "train.py").write_text(script)
    done = scaled(tmp_path, 2, "tensor", "train.py")
    assert done.returncode == 2
    assert re.search(r"^(  │ )?  at train.py:\d+: .*loops\.call\(model, ", done.stderr, re.MULTILINE)


@pytest.mark.parametrize("scale", KINDS)
def test_row_of_a_way_says_what_its_class_does(scale: str) -> None:
    """The command line imports no PyTorch: it knows a way by its row alone."""
    kind = choice.of_echelon(ScaleOptions(how=scale))
    assert kind.shares_batches != KINDS[scale].splits_model
    assert ("exact" in KINDS[scale].refuses) != bool(KINDS[scale].exact_place)
    if KINDS[scale].exact_place:
        assert issubclass(choice.of_echelon(ScaleOptions(how=scale, num_shards=2)), kind)


@pytest.mark.parametrize("scale", REFUSED)
@pytest.mark.parametrize(
    "option", ["--exact 2", "--shard-eval", "--sync-bn", "--per-device-batch", "--sync-every 2", "--compress bf16"]
)
def test_what_is_about_shared_batches_is_refused_before_the_start(scale: str, option: str) -> None:
    """An option that has no meaning where every rank has the whole batch is an error of the command line."""
    with pytest.raises(UsageError, match=f"{option.split()[0]} does not go with --scale {scale}: ") as told:
        read_job(scan([*option.split(), "--scale", scale, "train.py"]))
    assert "--scale data" in told.value.hint


CLOSURE = """
import torch
from torch import nn

torch.manual_seed(0)
x, y = torch.randn(64, 4), torch.randn(64, 1)
model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
optimizer = torch.optim.LBFGS(model.parameters(), max_iter=50)

def closure():
    optimizer.zero_grad()
    loss = nn.functional.mse_loss(model(x), y)
    loss.backward()
    return loss

optimizer.step(closure)
print("trained")
"""
PLAIN = """
import torch
from torch import nn

model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
model(torch.randn(4, 4)).mean().backward()
"""
