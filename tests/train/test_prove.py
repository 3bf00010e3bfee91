"""`echelon prove` says equal where it is equal, and WRONG with the reason where it is not."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from tests import warm
from tests.tiers import in_all, some

from echelon.cli import options, run
from echelon.cli import prove as command
from echelon.errors import UsageError

TRAIN = """
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
x = torch.randn(203, 10)
loader = DataLoader(TensorDataset(x, x.sum(1, keepdim=True)), batch_size=16, shuffle=True)
model = nn.Sequential(nn.Linear(10, 32), nn.ReLU(), nn.Dropout(0.1), nn.Linear(32, 1))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
for epoch in range(3):
    for inputs, targets in loader:
        loss = LOSS
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
"""
MEAN = "nn.functional.mse_loss(model(inputs), targets)"
TIMES_RANKS = MEAN + ' * int(__import__("os").environ["WORLD_" + "SIZE"])'  # in a way that reading does not see
OWN = """
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1 = nn.Linear(10, 32)
        self.drop = nn.Dropout(0.1)
        self.fc2 = nn.Linear(32, 1)

    def forward(self, x):
        return self.fc2(self.drop(torch.relu(self.fc1(x))))


dist.init_process_group("gloo")
torch.manual_seed(0)
x = torch.randn(203, 10)
data = TensorDataset(x, x.sum(1, keepdim=True))
sampler = DistributedSampler(data)
loader = DataLoader(data, batch_size=8, sampler=sampler)
model = DistributedDataParallel(Net())
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
for epoch in range(3):
    sampler.set_epoch(epoch)
    for inputs, targets in loader:
        loss = nn.functional.mse_loss(model(inputs), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
dist.destroy_process_group()
"""
INIT, DDP = 'dist.init_process_group("gloo")\n', "DistributedDataParallel(Net())"
RANDOM = [("DistributedSampler(data)", "torch.utils.data.RandomSampler(data)"), ("    sampler.set_epoch(epoch)\n", "")]
EXCHANGE = """loss.backward()
        for one in model.parameters():
            dist.all_reduce(one.grad)
"""


def prove(folder: Path, script: str, *options: str) -> subprocess.CompletedProcess[str]:
    (folder / "train.py").write_text(script)
    return warm.run(["-m", "echelon", "prove", *options, "train.py"], cwd=folder, timeout=200)


def figures(done: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    """Return what was found of the one comparison that was asked for."""
    (run,) = json.loads(done.stdout)["runs"]
    assert isinstance(run, dict)
    return run


def own(*changes: tuple[str, str]) -> str:
    """Return the script that distributes itself, with something else in it."""
    script = OWN
    for old, new in changes:
        assert old in script
        script = script.replace(old, new)
    return script


def test_same_training(tmp_path: Path) -> None:
    """Three ranks train as one does over thirty steps: in losses, gradients, states and weights; nothing is left."""
    done = prove(tmp_path, TRAIN.replace("LOSS", MEAN), "-n", "3", "--steps", "30", "--json")
    assert done.returncode == 0, done.stderr
    result = figures(done)
    assert result["verdict"] == "equal within rounding"
    assert len(result["steps"]) == 30
    assert max(row["difference"] for row in result["tensors"]) < 1e-3
    assert {(row["kind"], row["step"]) for row in result["tensors"]} == {
        ("start", 1),
        *((kind, step) for kind in ("gradients", "states", "parameters") for step in (1, 2, 16, 30)),
    }
    assert {row["tensor"] for row in result["tensors"]} >= {
        "initial Sequential.0.weight",
        "gradient of Sequential.0.weight",
        "exp_avg of Sequential.3.bias",
        "parameter Sequential.3.bias",
    }
    assert result["had"]["world_size"] == 3
    assert result["step_seconds"].keys() == {"one", "other"}
    assert [path.name for path in tmp_path.iterdir()] == ["train.py"]


def test_scaled_script_that_is_wrong_by_the_number_of_ranks(tmp_path: Path) -> None:
    """A loss that is twice as large on two ranks: step, tensor, factor and meaning are named."""
    done = prove(tmp_path, TRAIN.replace("LOSS", TIMES_RANKS), "-n", "2", "--steps", "5")
    assert done.returncode == 1, done.stderr
    assert "WRONG from step 1 on: gradient of Sequential.0.weight is 2.000 times as large" in done.stdout
    assert "that is the number of ranks, 2: the script sums gradients over the ranks" in done.stdout


def test_model_that_differs_to_the_last_step_is_equal_to_the_bit(tmp_path: Path) -> None:
    """Sums that do not round are the same in whatever order, and that is said."""
    script = TRAIN.replace("torch.randn(203, 10)", "torch.ones(192, 1)").replace("nn.Linear(10, 32), nn.ReLU(), ", "")
    script = script.replace("nn.Linear(32, 1)", "nn.Linear(1, 1)").replace("AdamW", "SGD").replace("1e-2", "0.5")
    script = script.replace("x.sum(1, keepdim=True)", "x").replace("optimizer =", "nn.init.ones_(model[1].weight); "
                            "nn.init.ones_(model[1].bias); optimizer =")  # fmt: skip
    done = prove(tmp_path, script.replace("LOSS", MEAN), "-n", "2", "--steps", "4")
    assert done.returncode == 0, done.stderr
    assert "equal to the bit: 4 steps on 2 ranks" in done.stdout


def test_script_without_a_seed_is_compared_all_the_same(tmp_path: Path) -> None:
    """All three runs begin with the same random numbers, whether the script seeds them or not."""
    script = TRAIN.replace("LOSS", MEAN).replace("torch.manual_seed(0)\n", "")
    done = prove(tmp_path, script, "-n", "2", "--steps", "5", "--json")
    assert done.returncode == 0, done.stderr
    assert max(row["loss"]["bound"] for row in figures(done)["steps"]) < 1e-3


def test_script_that_mixes_the_samples_of_a_batch(tmp_path: Path) -> None:
    """Where another order of samples is another training, changed gradients show rounding, and a note says so."""
    script = (Path(__file__).parents[1] / "scripts" / "mixup.py").read_text()
    done = prove(tmp_path, script, "-n", "2", "--steps", "3")
    assert done.returncode == 0, done.stderr
    assert "equal within rounding: 3 steps on 2 ranks" in done.stdout
    assert "note: the first loss depends on the order of the samples in a batch" in done.stderr
    assert "1 rank, each gradient with its last bit changed …" in done.stderr


def test_script_that_never_does_the_same_twice(tmp_path: Path) -> None:
    """Where one device does not agree with itself, nothing is proved, and that is said."""
    script = TRAIN.replace("LOSS", MEAN).replace("torch.manual_seed(0)", "torch.seed()")
    done = prove(tmp_path, script, "-n", "2", "--steps", "5")
    assert done.returncode == 1
    assert "cannot be compared: two runs on one rank differ by" in done.stderr


def test_failing_script_is_not_compared(tmp_path: Path) -> None:
    """A script that fails on one rank is shown as it fails, and no log is named that is gone."""
    done = prove(tmp_path, "raise ValueError('no data')\n", "-n", "2")
    assert done.returncode == 1
    assert "the run on 1 rank failed" in done.stderr
    assert "ValueError: no data" in done.stderr
    assert ".echelon-prove" not in done.stderr


def test_script_that_does_not_train(tmp_path: Path) -> None:
    """Without an optimizer step there is nothing to compare, and that is said."""
    done = prove(tmp_path, "import torch\n", "-n", "2")
    assert done.returncode == 1
    assert "without a step of a torch.optim optimizer" in done.stderr


@pytest.mark.parametrize(
    "model",
    [
        pytest.param(DDP, id="ddp", marks=pytest.mark.tier("all")),
        pytest.param("fully_shard(Net())", id="fsdp2"),
        pytest.param(
            'FullyShardedDataParallel(Net(), device_id=torch.device("cpu"))', id="fsdp1", marks=pytest.mark.tier("all")
        ),
        pytest.param(
            'FullyShardedDataParallel(Net(), device_id=torch.device("cpu"), use_orig_params=True)',
            id="fsdp1-original",
            marks=pytest.mark.tier("all"),
        ),
    ],
)
def test_own_distribution_is_that_of_one_process(tmp_path: Path, model: str) -> None:
    """DDP and FSDP train as one process with the batches of both ranks does, under the script's own names."""
    done = prove(tmp_path, own((DDP, model)), "-n", "2", "--steps", "29", "--json")
    assert done.returncode == 0, done.stderr
    assert "note: one process draws batches of 16, as 2 ranks of 8 do together" in done.stderr
    assert "note: 1 sample is drawn twice in an epoch" in done.stderr
    result = figures(done)
    assert result["verdict"] == "equal within rounding"
    assert [row["step"] for row in result["steps"]] == list(range(1, 30))
    assert max(row["loss"]["difference"] for row in result["steps"]) < 1e-3
    tensors = {row["tensor"] for row in result["tensors"]}
    assert tensors >= {"gradient of Net.fc1.weight", "exp_avg_sq of Net.fc1.bias", "parameter Net.fc2.bias"}
    assert result["had"]["num_sharded"] == (0 if model == DDP else 4)


WRONG = {
    "alone": (
        own((DDP, "Net()")),
        "gradient of Net.fc1.weight differs by",
        "the ranks do not exchange gradients, so every rank trains alone",
    ),
    "summed-loss": (
        own(("targets)\n", 'targets, reduction="sum")\n')),
        "WRONG from step 1 on: gradient of Net.fc1.weight is 0.500 times as large",
        "that is 1/2, one over the number of ranks: the loss is a sum over each rank's samples",
    ),
    "summed-gradients": (
        own((DDP, "Net()"), ("loss.backward()\n", EXCHANGE)),
        "WRONG from step 1 on: gradient of Net.fc1.weight is 2.000 times as large",
        "that is the number of ranks, 2: the script sums gradients over the ranks",
    ),
    "learning-rate": (
        own(("lr=1e-2", "lr=1e-2 * dist.get_world_size()")),
        "WRONG from step 1 on: the learning rate is 0.02, but 0.01 on one device: 2.000 times as large",
        "multiplies it by the number of ranks",
    ),
    "other-start": (
        own((DDP, "fully_shard(Net())"), ("torch.manual_seed(0)", "torch.manual_seed(dist.get_rank())"),
            ("randn(203, 10)", "randn(203, 10, generator=torch.Generator().manual_seed(0))")),
        "WRONG from step 1 on: initial Net.fc1.weight differs by",
        "let every rank begin with the same weights",
    ),
    "later": (
        own(("        optimizer.step()\n", "        if len(optimizer.state) and optimizer.state[model.module.fc2.bias]"
             '["step"] == 4 and dist.get_world_size() == 2:\n            model.module.fc2.weight.grad *= 3\n'
             "        optimizer.step()\n")),
        "WRONG from step 5 on: the norm of the gradient of Net.fc2.weight is 3.000 times as large",
        "uses the whole batch",
    ),
    "other-samples": (
        own(("DistributedSampler(data)", "DistributedSampler(data, seed=dist.get_world_size())")),
        "WRONG from step 1 on: gradient of Net.fc1.weight differs by",
        "did not train on the same samples",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", some(list(WRONG), 12))
def test_own_distribution_that_is_wrong(tmp_path: Path, case: str) -> None:
    """The first step, the tensor by its name, the factor, and what it means."""
    script, what, meaning = WRONG[case]
    done = prove(tmp_path, script, "-n", "2", "--steps", "7")
    assert done.returncode == 1, done.stderr
    assert what in done.stdout
    assert meaning in done.stdout
    assert ("note: from step 5 on the runs differ; float64 shows" in done.stderr) == (case == "later")
    assert "float64 cannot decide" not in done.stderr


ROUNDED = own(
    ("AdamW(", "Adam("),
    ("        self.fc2 =", "        self.wide = nn.Parameter(torch.full((1000,), 100.0))\n        self.fc2 ="),
    ("        return self", "        return 100 * (self.wide[0] - 100) ** 2 + self.wide[1:].mean() + self"),
    ("        optimizer.step()\n",
     "        model.module.wide.grad[0] += (dist.get_world_size() - 1) * torch.finfo(loss.dtype).eps / 10\n"
     "        optimizer.step()\n"),
)  # fmt: skip
"""A gradient that is 0 on one process, and rounding on two: Adam makes half a step of it."""


def test_rounding_that_becomes_a_step_is_no_mistake(tmp_path: Path) -> None:
    """In the script's own precision the second loss differs; in float64 all is equal, and that decides."""
    done = prove(tmp_path, ROUNDED, "-n", "2", "--steps", "2", "--json")
    assert done.returncode == 0, done.stderr
    result = figures(done)
    assert result["float64_decides"]["from_step"] == 2
    assert result["num_telling"] == 1
    loss = result["steps"][1]["loss"]
    assert loss["difference"] > loss["bound"]
    assert max(row["difference"] for row in result["tensors"]) < 2e-5


REPLACED = """
import gc
import os

import torch
from torch import nn

torch.manual_seed(0)
x = torch.randn(64, 10)
body, head = nn.Sequential(nn.Linear(10, 8), nn.Tanh(), nn.Linear(8, 4)), nn.Linear(4, 1)
optimizer = torch.optim.Adam([*body.parameters(), *head.parameters()], lr=1e-2)
optimizer.itself = optimizer
for epoch in range(2):
    for batch in x.split(16):
        h = body(batch)
        h = h - h.mean(0)
        loss = (h.T @ h / 16 - torch.eye(4)).pow(2).sum() + (head(h) if epoch == 0 else h).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    optimizer = torch.optim.Adam(body.parameters(), lr=1e-2)
    if os.environ["WORLD_" + "SIZE"] == "1":
        gc.collect()
"""
"""The gradient of the last bias of the body is 0 but for rounding, of which Adam makes whole steps, the first too."""


def test_rounding_in_the_first_step_and_a_replaced_optimizer(tmp_path: Path) -> None:
    """float64 decides where the gradients agree; when Python frees an optimizer has no part in the comparison."""
    done = prove(tmp_path, REPLACED, "-n", "2", "--steps", "8", "--json")
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr
    assert figures(done)["float64_decides"]["from_step"] == 1


@pytest.mark.parametrize(
    ("change", "note"),
    [
        in_all(("model(inputs)", "torch.autocast('cpu', torch.bfloat16)(model)(inputs).float()"), ""),
        (
            ("nn.Linear(10, 32)", "nn.Linear(10, 32, dtype=torch.float32)"),
            "float64 cannot decide, so the verdict stays",
        ),
    ],
    ids=["half precision", "float32 by name"],
)
def test_mistake_that_float64_cannot_judge_stays_one(tmp_path: Path, change: tuple[str, str], note: str) -> None:
    """float64 knows nothing of half precision, and a script that names float32 fails in it."""
    script = WRONG["later"][0]
    assert change[0] in script
    done = prove(tmp_path, script.replace(*change), "-n", "2", "--steps", "7")
    assert done.returncode == 1, done.stderr
    assert "WRONG from step 5 on: the norm of the gradient of Net.fc2.weight is" in done.stdout
    assert note in done.stderr
    assert ("float64" in done.stderr) == bool(note)


LESS = {
    "no process group": (
        own((INIT, ""), (DDP, "Net()"), ("(data)\nl", "(data, 1, 0)\nl"), ("dist.destroy_process_group()", "")),
        "echelon started 2 ranks, but the script never initialized torch.distributed: each rank trained alone",
    ),
    "a world of one": (
        own(("init_process_group(", "init_process_group(store=dist.HashStore(), rank=0, world_size=1, backend=")),
        "you asked for 2 ranks, but the script's torch.distributed has 1",
    ),
    "gradients by hand": (
        "import torch\nweight = torch.nn.Parameter(torch.ones(3))\noptimizer = torch.optim.SGD([weight], lr=0.1)\n"
        "for _ in range(3):\n    weight.grad = 2 * weight.detach()\n    optimizer.step()\n",
        "the ranks share nothing: the script calls no backward()",
    ),
    "the same samples": (own(*RANDOM), "all 2 ranks train on the same samples, so together they do the work of one"),
    "a larger batch": (
        own(*RANDOM, ("TensorDataset(x", "TensorDataset(x[dist.get_rank() :: dist.get_world_size()]"),
            ("x.sum(1", "x[dist.get_rank() :: dist.get_world_size()].sum(1")),
        "a step of one process has 8 samples, but a step of 2 ranks together has 16",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", some(list(LESS), 2))
def test_less_than_was_asked_for_is_an_error(tmp_path: Path, case: str) -> None:
    """One process instead of two, or the work of one, is never taken for a proof."""
    script, message = LESS[case]
    done = prove(tmp_path, script, "-n", "2", "--steps", "3")
    assert done.returncode == 1
    assert message in done.stderr
    assert "hint: " in done.stderr
    assert done.stdout == ""


def test_global_batch_that_the_script_divides(tmp_path: Path) -> None:
    """A script that divides its batch by the number of ranks is compared with the batch that it has on one."""
    script = own(("batch_size=8", "batch_size=16 // dist.get_world_size()"))
    done = prove(tmp_path, script, "-n", "2", "--steps", "3")
    assert done.returncode == 0, done.stderr
    assert "draws batches of" not in done.stderr
    assert "equal within rounding: 3 steps on 2 ranks" in done.stdout
    assert "a step takes" not in done.stdout, "two steps after the first are too few to tell"


def test_time_of_a_step(tmp_path: Path) -> None:
    """How long a step took on one rank and on two, without what recording it costs: a digest of each sample here."""
    sleeps = "import time; time.sleep(50e-3 * len(x) / 16)"
    script = own(
        ("    def forward(self, x):\n", f"    def forward(self, x):\n        {sleeps}\n"),
        ("x.sum(1, keepdim=True))", "x.sum(1, keepdim=True), torch.zeros(len(x), 20_000))"),
        ("for inputs, targets in", "for inputs, targets, _ in"),
    )
    done = prove(tmp_path, script, "-n", "2", "--steps", "6")
    said = re.search(
        r"a step takes ([\d.]+) ms on 1 rank and ([\d.]+) ms on 2: [\d.]+ times as (fast|long)\n", done.stdout
    )
    assert said, done.stdout + done.stderr
    assert 50 <= float(said[1]) < 500
    assert 25 <= float(said[2]) < 500


def test_sampler_that_is_there_on_several_ranks_alone(tmp_path: Path) -> None:
    """Where one process would shuffle by itself it gets the order that several ranks share, epoch by epoch."""
    script = own(
        (
            "sampler = DistributedSampler(data)",
            "sampler = DistributedSampler(data) if dist.get_world_size() > 1 else None",
        ),
        ("sampler=sampler)", "sampler=sampler, shuffle=sampler is None)"),
        ("    sampler.set", "    sampler and sampler.set"),
    )
    done = prove(tmp_path, script, "-n", "2", "--steps", "20")
    assert done.returncode == 0, done.stderr
    assert "one process draws its samples in the order that the DistributedSampler gives" in done.stderr
    assert "equal within rounding: 20 steps on 2 ranks" in done.stdout


def test_batches_that_come_from_no_loader(tmp_path: Path) -> None:
    """Where there is no loader whose batches could be turned round, the last bit of each gradient gives the bound."""
    script = own(
        (
            "for inputs, targets in loader:",
            "for step in range(9):\n        rows = torch.arange(step * 16, step * 16 + 16)",
        ),
        (
            "loss = ",
            "rows = rows[dist.get_rank() :: dist.get_world_size()]\n"
            "        inputs, targets = data[rows]\n        loss = ",
        ),
    )
    done = prove(tmp_path, script, "-n", "2", "--steps", "20")
    assert done.returncode == 0, done.stderr
    assert "each gradient with its last bit changed" in done.stderr
    assert "equal within rounding: 20 steps on 2 ranks" in done.stdout


def test_explicit_form_is_recorded_once(tmp_path: Path) -> None:
    """A script that calls echelon.start() writes its record by itself."""
    script = "import echelon\nrun = echelon.start()\n" + TRAIN.replace("LOSS", MEAN).replace(
        "for epoch", "loader, model = run.loader(loader), run.model(model, optimizer)\nfor epoch"
    )
    done = prove(tmp_path, script, "-n", "2", "--steps", "10")
    assert done.returncode == 0, done.stderr
    assert "equal within rounding: 10 steps on 2 ranks" in done.stdout


def test_options_that_change_the_training(tmp_path: Path) -> None:
    """They reach the ranks: with a larger batch and its BatchNorm they train as one device with the batch of all."""
    script = TRAIN.replace("LOSS", MEAN).replace("nn.ReLU()", "nn.BatchNorm1d(32), nn.ReLU()")
    assert "BatchNorm1d" in script
    larger = ("--sync-bn", "--per-device-batch", "--scale-lr", "sqrt")
    done = prove(tmp_path, script, "-n", "2", "--steps", "5", "--json", *larger)
    assert done.returncode == 0, done.stdout + done.stderr
    assert figures(done)["verdict"] == "equal within rounding"


@pytest.mark.parametrize(
    ("options", "has_way_out"), [((), True), pytest.param(("--exact", "2"), False, marks=pytest.mark.tier("all"))]
)
def test_batch_norm_of_a_scaled_script(tmp_path: Path, options: tuple[str, ...], has_way_out: bool) -> None:
    """BatchNorm is named as the cause; --sync-bn as the way out only where `echelon run` takes it."""
    script = TRAIN.replace("LOSS", MEAN).replace("nn.ReLU(), nn.Dropout(0.1)", "nn.BatchNorm1d(32), nn.ReLU()")
    done = prove(tmp_path, script, "-n", "2", "--steps", "3", *options)
    assert done.returncode == 1, done.stdout
    assert "is a BatchNorm that uses the statistics of each rank's own samples" in done.stdout
    assert ("--sync-bn takes the statistics of the whole batch" in done.stdout) == has_way_out


def test_every_option_that_changes_the_training_is_known() -> None:
    """Options that change the training are marked in the table of options, so `prove` takes them."""
    values = {"scale_lr": "linear", "outer_lr": "0.7", "outer_momentum": "0.9", "compress": "bf16"}
    needs = {
        "--scale-lr": "--per-device-batch",
        **dict.fromkeys(("--outer-lr", "--outer-momentum", "--async"), "--sync-every=4"),
    }
    for option in options.OPTIONS:
        name = option.names[-1]
        words = [name, *([values.get(option.key, "4")] if option.value else [])]
        try:
            job = run.read_job(options.scan([*([needs[name]] if name in needs else []), *words, "train.py"]))
        except UsageError:  # of what names a file, say
            job = None
        changes = job is not None and bool(set(job.scale_options.written()) - {"--no-check", "--watch-bits"})
        assert option.trains == changes, name
        assert option in command.OPTIONS or not option.trains


def test_curves_are_drawn(tmp_path: Path) -> None:
    """--plot writes a picture under the name that was given, and says so."""
    pytest.importorskip("matplotlib")
    done = prove(tmp_path, TRAIN.replace("LOSS", TIMES_RANKS), "-n", "2", "--steps", "3", "--plot", "curves.png")
    assert done.returncode == 1
    assert "both curves are in curves.png" in done.stderr
    assert (tmp_path / "curves.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_nothing_is_left_of_what_is_interrupted(tmp_path: Path, number: int) -> None:
    """Ctrl-C and SIGTERM end the ranks and remove the records."""
    (tmp_path / "train.py").write_text("import time\nprint('here')\ntime.sleep(600)\n")
    command = [sys.executable, "-m", "echelon", "prove", "-n", "2", "train.py"]
    process = subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 60
    while not list(tmp_path.glob(".echelon-prove-*/run-one/logs/*/rank-0.log")) and time.monotonic() < deadline:
        time.sleep(0.05)
    process.send_signal(number)
    process.communicate(timeout=60)
    assert process.returncode == 128 + number
    assert [path.name for path in tmp_path.iterdir()] == ["train.py"]
    assert not marked(str(tmp_path))


def marked(folder: str) -> list[str]:
    """Return the processes that have a folder in their command line or environment."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                texts = (entry / "cmdline").read_bytes(), (entry / "environ").read_bytes()
            except OSError:
                continue
            if any(f"{folder}/.echelon-prove".encode() in text for text in texts):
                found.append(entry.name)
    return found


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("-n", "1"), "-n 1: give a whole number of at least 2"),
        (("--steps", "0"), "--steps 0: give a whole number of at least 1"),
        (("--stepps", "3"), "echelon has no option --stepps"),
        (("--scale", "sequence"), "--scale sequence: the choices are data, fsdp, tensor, context, pipeline, off"),
        (
            ("--scale", "off,data"),
            "--scale off,data: a script distributes itself (off) or echelon scales it (data, fsdp, tensor, ",
        ),
        (("--scale", "data"), "train.py distributes itself: it mentions torch.distributed"),
        (("--plot", "curves.pdf"), "--plot curves.pdf: give the name of a PNG file"),
        (("--plot", "none/curves.png"), "--plot none/curves.png: none is not a folder that you can write"),
        (("--launch", "nix"), "--launch nix: the choices are warm, exec, tasks"),
    ],
)
def test_wrong_input(tmp_path: Path, options: tuple[str, ...], message: str) -> None:
    """One error, exit code 2, before anything is started."""
    done = prove(tmp_path, "import torch.distributed\n", *options)
    assert done.returncode == 2
    assert message in done.stderr
    assert "hint: " in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["train.py"]


def test_worst_tensor_is_one_that_tells_something(capsys: pytest.CaptureFixture[str]) -> None:
    """What is 0 but for rounding may differ by its whole size, and is named apart; unless there is nothing else."""
    noise = {"tensor": "gradient of k.bias", "step": 1, "difference": 2.2, "tells": False}
    rows = [noise, {"tensor": "gradient of q.weight", "step": 2, "difference": 1e-7, "tells": True}]
    command._print_worst(rows)
    said = capsys.readouterr().out
    assert "the worst of 1 tensors differs by 1.0e-07: gradient of q.weight in step 2\n" in said
    assert (
        "1 more tensors cannot be compared: rounding alone changes them on one device too: gradient of k.bias\n" in said
    )
    command._print_worst([noise])
    assert capsys.readouterr().out == "  the worst of 1 tensors differs by 2.2e+00: gradient of k.bias in step 1\n"


def test_what_float64_has_decided_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    """The verdict names the precision, and where the script's own one begins to differ."""
    run = {
        "scale": "data", "verdict": "equal within rounding", "is_wrong": False, "steps": [], "tensors": [],
        "step_seconds": {"one": None, "other": None}, "num_telling": 1, "compared": ["losses"], "not_compared": [],
        "had": {"world_size": 4, "num_sharded": 0, "num_parameters": 6},
        "float64_decides": {"from_step": 2, "why": "gradient of up.weight differs by 0.001 of its norm"},
    }  # fmt: skip
    command._print(run, 4, is_named=False)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "equal within rounding: 0 steps on 4 ranks, compared in float64"
    assert lines[1].endswith("from step 2 on, gradient of up.weight differs by 0.001 of its norm")
