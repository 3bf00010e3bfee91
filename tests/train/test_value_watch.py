"""The first step with a value that is not finite is told, with rank, step and samples; a healthy training has none."""

import json
import math
import os
from pathlib import Path
from typing import Any

import pytest
from tests import warm
from tests.runs import ECHELON
from tests.tiers import some

from echelon.train.measuring import value_watch
from echelon.train.measuring.value_watch import LOSS, NORM, ValueWatch

SCRIPT = """
import torch
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
x = torch.randn(96, 6)
y = x.abs().sum(1, keepdim=True)
PREPARE
model = torch.nn.Linear(6, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
step = 0
loader = DataLoader(TensorDataset(x, y), batch_size=8)
for epoch in range(2):
    for rows, targets in loader:
        step += 1
        loss = torch.nn.functional.mse_loss(model(rows), targets)
        optimizer.zero_grad()
        BACKWARD
        optimizer.step()
"""
LAST = 24
OWN = """
import os
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

dist.init_process_group("gloo")
torch.manual_seed(0)
x = torch.randn(64, 6)
y = x.abs().sum(1, keepdim=True)
y[41] = float("nan")
data = TensorDataset(x, y)
model = DistributedDataParallel(torch.nn.Linear(6, 1))
optimizer = torch.optim.SGD(model.parameters(), 0.01)
for rows, targets in DataLoader(data, batch_size=4, sampler=DistributedSampler(data, shuffle=False)):
    loss = torch.nn.functional.mse_loss(model(rows), targets)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""


def noted(folder: Path, script: str, *options: str) -> "tuple[list[dict[str, Any]], str]":
    """Return the facts about bad steps that a run has kept, and what it said."""
    (folder / "train.py").write_text(script)
    line = [*ECHELON, "run", "--run-dir", "run", *options, "train.py"]
    done = warm.run(line[1:], cwd=folder, environ={**os.environ, "OMP_NUM_THREADS": "1"})
    assert done.returncode == 0, done.stderr
    events = [json.loads(line) for line in (folder / "run" / "events.jsonl").read_text().splitlines()]
    return [event for event in events if event.get("fact") in ("value not finite", "spike")], done.stderr


def script(*, prepare: str = "", backward: str = "loss.backward()") -> str:
    return SCRIPT.replace("PREPARE", prepare).replace("BACKWARD", backward.replace("\n", "\n        "))


def test_bad_sample_of_a_script_that_distributes_itself(tmp_path: Path) -> None:
    """Sample 41 is on rank 1, in its sixth batch; rank 0 meets the weights in the step after, and is not named."""
    (fact,), said = noted(tmp_path, OWN, "-n", "2")
    assert {name: fact[name] for name in ("rank", "step", "what", "value", "weights", "pass", "bad_sample")} == {
        "rank": 1, "step": 6, "what": "loss", "value": "nan", "weights": "finite", "pass": 1, "bad_sample": 41,
    }  # fmt: skip
    assert fact["samples"] == [41, 43, 45, 47]
    assert "note: step 6, pass 1 over its loader: the loss of rank 1 is nan; the weights were finite before" in said
    report = warm.run(["-m", "echelon", "report", "run"], cwd=tmp_path)
    assert "\nbad step  step 6, pass 1 over its loader: the loss of rank 1 is nan" in report.stdout


@pytest.mark.parametrize("way", some(["data", "fsdp"], 1))
def test_bad_sample_of_a_scaled_script(tmp_path: Path, way: str) -> None:
    """In the second epoch sample 94 has no target: rank 1 has the second half of each batch."""
    bad = "if epoch:\n    targets = torch.where(rows[:, :1] == x[94, 0], torch.nan, targets)\n"
    bad += "    loss = torch.nn.functional.mse_loss(model(rows), targets)\nloss.backward()"
    (fact,), _ = noted(tmp_path, script(backward=bad), "-n", "2", "--scale", way)
    assert (fact["rank"], fact["step"], fact["pass"], fact["samples"]) == (1, 24, 2, [92, 93, 94, 95])


def test_lone_infinity(tmp_path: Path) -> None:
    """One loss is infinite, its gradient is finite, and the run is over at once: the step is named all the same."""
    bad = "if step == 5:\n    loss = loss + torch.inf\nloss.backward()"
    (fact,), _ = noted(tmp_path, script(backward=bad), "-n", "1")
    assert (fact["step"], fact["value"], fact["weights"]) == (5, "inf", "finite")
    assert fact["samples"] == list(range(32, 40))
    assert "bad_sample" not in fact


def test_gradient_that_is_not_finite(tmp_path: Path) -> None:
    """The loss of the step is finite: the weights are bad from it on. Where the script clips, the norm tells it."""
    bad = "if step == 7:\n    loss = loss + (model.weight - model.weight.detach()).abs().sum().sqrt()\nloss.backward()"
    (fact,), _ = noted(tmp_path, script(backward=bad), "-n", "1")
    assert (fact["what"], fact["step"], fact["samples"]) == ("weights", 7, list(range(48, 56)))
    (tmp_path / "last").mkdir()
    last = script(backward=bad.replace("step == 7", f"step == {LAST}"))
    (fact,), _ = noted(tmp_path / "last", last, "-n", "1")
    assert (fact["what"], fact["step"], "samples" in fact) == ("weights", LAST, True)
    bad += "\ntorch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)"
    (tmp_path / "clipped").mkdir()
    (fact,), _ = noted(tmp_path / "clipped", script(backward=bad), "-n", "2", "--scale", "data")
    assert (fact["what"], fact["step"], fact["value"], fact["weights"]) == ("norm", 7, "nan", "finite")


def test_norm_of_a_split_model_that_is_not_finite(tmp_path: Path) -> None:
    """It is the norm of the weights of all ranks, and is told as that of a whole model is."""
    bad = "output = model(rows)\nloss = torch.nn.functional.mse_loss(output, targets)\n"
    bad += "if step == 7:\n    loss = loss + (output - output.detach()).abs().sum().sqrt()\n"
    bad += "loss.backward()\ntorch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)"
    blocks = "*(torch.nn.Sequential(torch.nn.Linear(6, 6), torch.nn.Tanh()) for _ in range(2))"
    text = script(backward=bad).replace("(6, 1)", f"(6, 1)\nmodel = torch.nn.Sequential({blocks}, model)", 1)
    (fact,), _ = noted(tmp_path, text, "-n", "2", "--scale", "pipeline")
    assert (fact["what"], fact["step"], fact["value"], fact["weights"]) == ("norm", 7, "nan", "finite")


def test_learning_rate_that_diverges(tmp_path: Path) -> None:
    diverging = script().replace("lr=0.01", "lr=1e9").replace("range(2)", "range(3)")
    (fact,), _ = noted(tmp_path, diverging, "-n", "1")
    assert (fact["what"], fact["value"], fact["weights"]) == ("loss", "inf", "finite")
    assert "bad_sample" not in fact


HEALED = {
    "masked": "if step == 5:\n    loss = loss * torch.nan\n"
    "if loss.isnan():\n    loss = 0 * model.weight.sum()\nloss.backward()",
    "continued": "if step == 5:\n    continue\nloss.backward()",
    "left out": "if step == 5:\n    (loss * torch.nan).backward()\n    optimizer.zero_grad()\n    continue\n"
    "loss.backward()",
    "scaled": "scaler.scale(loss).backward()\nscaler.unscale_(optimizer)\n"
    "torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)\nscaler.step(optimizer)\nscaler.update()\ncontinue",
}


@pytest.mark.parametrize("how", HEALED)
def test_script_that_heals_itself(tmp_path: Path, how: str) -> None:
    """A loss that the script masks or leaves out, and the steps that a GradScaler leaves out, are no bad steps."""
    prepare = ""
    if how == "scaled":  # gradients overflow until the scale is low enough
        prepare = "scaler = torch.amp.GradScaler('cpu', init_scale=2.0**127)"
    facts, _ = noted(tmp_path, script(prepare=prepare, backward=HEALED[how]), "-n", "1")
    assert facts == []


CORPUS = (
    "gan", "grad_scaler", "reinforce", "accumulate", "lbfgs", "two_optimizers", "plain_loop", "vae", "speech_ctc",
    "transformer_lm", "triplet", "dqn",
)  # fmt: skip


@pytest.mark.parametrize("name", some(list(CORPUS), 2))
def test_healthy_script(tmp_path: Path, name: str) -> None:
    text = (Path(__file__).parents[1] / "scripts" / f"{name}.py").read_text()
    facts, _ = noted(tmp_path, text, "-n", "1")
    assert facts == []


def test_spike_by_a_mislabelled_batch(tmp_path: Path) -> None:
    """The loss of a batch with other labels is told with its samples, once the training goes on as before."""
    mislabelled = (
        "if step == 300:\n    loss = torch.nn.functional.mse_loss(model(rows), 1e2 + targets)\nloss.backward()"
    )
    text = script(backward=mislabelled).replace("range(2)", "range(30)")
    (fact,), said = noted(tmp_path, text, "-n", "1")
    assert (fact["fact"], fact["step"], fact["pass"], fact["samples"]) == ("spike", 300, 25, list(range(88, 96)))
    assert f"the loss of rank 0 is {fact['value']}; the median of those before is" in said


def test_spike_of_a_norm() -> None:
    """A gradient that explodes is told by the norm that the script clips by; three spikes are enough."""
    import torch

    told: list[str] = []
    watched = ValueWatch(told.append)
    optimizer = torch.optim.SGD([torch.zeros(1)])
    for step in range(900):
        watched.note(LOSS, torch.tensor(1.0))
        watched.note(NORM, torch.tensor(900.0 if step >= 300 and step % 100 == 0 else 1 + step % 7 / 10))
        watched.before_step(optimizer)
        watched.after_step(optimizer)
    notes = json.loads(told[-1])
    assert [(note["kind"], note["what"], note["step"]) for note in notes] == [
        ("spike", "norm", step) for step in (301, 401, 501)
    ]


@pytest.mark.parametrize("in_order", [True, False])
def test_samples_of_a_loader_without_order_are_unknown(in_order: bool) -> None:
    """Its workers give batches as they are done, so the indices drawn first may be those of a later batch."""
    from torch.utils.data import DataLoader

    from echelon.train.measuring.batch_origins import BatchOrigins

    given = BatchOrigins()
    loader = iter(DataLoader(range(4), batch_size=2))  # type: ignore[arg-type]
    loader._in_order = in_order  # as an iterator with workers has it
    given.drew(loader, [0, 1])
    given.gave(loader, None)
    assert given.origin().samples == ([0, 1] if in_order else [])


def test_batch_ahead_of_its_loss() -> None:
    """A loop that takes the next batch before it trains on the present one: both are named."""
    import torch
    from torch.utils.data import DataLoader

    from echelon.train.measuring.batch_origins import BatchOrigins

    given = BatchOrigins()
    loader = iter(DataLoader(range(20), batch_size=2))  # type: ignore[arg-type]
    origins = []

    def take() -> None:
        indices = next(sampler)
        given.drew(loader, indices)
        given.gave(loader, torch.tensor(indices))

    sampler = iter([[0, 1], [2, 3], [4, 5], [6, 7]])
    take()
    for _ in range(3):
        take()
        origins.append(given.origin().samples)
    assert origins == [[0, 1, 2, 3], [2, 3, 4, 5], [4, 5, 6, 7]]


def test_values_of_a_device_are_read_later(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody waits: numbers are judged once their copy is there, with the facts of their own step."""
    import torch

    class Event:
        is_reached = False

        def query(self) -> bool:
            return Event.is_reached

        def synchronize(self) -> None:
            Event.is_reached = True

    monkeypatch.setattr(value_watch.devices, "is_accelerator", lambda _: True)
    monkeypatch.setattr(value_watch.devices, "event", Event)
    monkeypatch.setattr(value_watch, "READ_SECONDS", 0.0)
    pinned = torch.empty
    monkeypatch.setattr(value_watch.torch, "empty", lambda size, **_: pinned(size))
    told: list[str] = []
    watched = ValueWatch(told.append)
    optimizer = torch.optim.SGD([torch.zeros(1)])
    for value in (1.0, 2.0, math.nan, 3.0, math.inf):
        watched.note(LOSS, torch.tensor(value))
        watched.note(NORM, torch.tensor(1.0))
        watched.before_step(optimizer)
        watched.after_step(optimizer)
    assert told == []
    assert watched.losses == {}
    Event.is_reached = True
    watched.after_step(optimizer)
    watched.after_step(optimizer)
    (note,) = json.loads(told[-1])
    assert (note["what"], note["step"], note["value"]) == ("loss", 3, "nan")
    assert "weights" not in note
    assert watched.losses == {"losses_not_finite": 2.0}
