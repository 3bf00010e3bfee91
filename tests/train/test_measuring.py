"""What ranks measure of an unchanged script: known times, samples and losses; what is unknown is missing."""

import json
import os
import re
import threading
from pathlib import Path
from typing import Any

import pytest
from tests import warm
from tests.runs import ECHELON
from tests.tiers import some

from echelon.train import patches
from echelon.train.measuring import measures as measuring_measures
from echelon.train.measuring import spans
from echelon.train.measuring.install import _timed, install
from echelon.train.measuring.measures import Measures, size_of

SCRIPT = """
import os, time, torch
from torch.utils.data import DataLoader, Dataset

SLOW = 0.02
torch.manual_seed(0)
x, y = torch.randn(48, 6), torch.randint(0, 3, (48,))


class Slow(Dataset):
    def __len__(self):
        return 48

    def __getitem__(self, index):
        time.sleep(SLOW / 12)
        return x[index], y[index]


model = torch.nn.Linear(6, 3)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
began = time.time()
for epoch in range(2):
    for rows, classes in DataLoader(Slow(), batch_size=12):
        loss = torch.nn.functional.cross_entropy(model(rows), classes)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"loss {loss.item():.6f}")
        END
    torch.save(model.state_dict(), "model.pt")
"""
OF_ITSELF = """
import os, time, torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
model = DistributedDataParallel(torch.nn.Linear(6, 3))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(5):
    text = torch.randn(4, 6)
    loss = model(text).pow(2).mean()
    if dist.get_rank() == 1:
        time.sleep(0.05)
    loss.backward()  # rank 0 waits for rank 1 at its end
    if dist.get_rank() == 0:
        time.sleep(0.05)
    dist.barrier()  # rank 1 waits for rank 0
    optimizer.step()
    optimizer.zero_grad()
"""

SPLIT = """
import sys, time, torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

dist.init_process_group("gloo")
mesh = init_device_mesh("cpu", (2,))
rank = dist.get_rank()


class Slow(nn.Module):
    def forward(self, rows):
        if rank == 1:
            time.sleep(0.05)
        return rows


def layer():
    return nn.Sequential(nn.Linear(8, 16), Slow(), nn.Linear(16, 8))


torch.manual_seed(0)
rows = torch.randn(8, 8)
if sys.argv[1] == "fully_shard":
    from torch.distributed.fsdp import fully_shard
    model = nn.Sequential(layer(), layer())
    for each in (*model, model):
        fully_shard(each, mesh=mesh)
elif sys.argv[1] == "tensor":
    model = nn.Sequential(layer(), layer())
    parallelize_module(model, mesh, {"*.0": ColwiseParallel(), "*.2": RowwiseParallel()})
else:
    from torch.distributed.pipelining import PipelineStage, ScheduleGPipe
    model = layer()
    stage = PipelineStage(model, rank, 2, torch.device("cpu"))
    schedule = ScheduleGPipe(stage, 2, loss_fn=lambda output, target: (output - target).square().mean())
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(6):
    if sys.argv[1] == "pipeline":
        schedule.step(rows) if rank == 0 else schedule.step(target=rows)
    else:
        model(rows).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
"""


def measured(
    folder: Path, script: str, *options: str, arguments: tuple[str, ...] = ()
) -> "tuple[list[dict[str, Any]], str]":
    """Return the measures of each rank at its end, and what the run printed."""
    (folder / "train.py").write_text(script)
    environ = {**os.environ, "OMP_NUM_THREADS": "1"}
    line = [*ECHELON, "run", "--run-dir", "run", *options, "train.py", *arguments]
    done = warm.run(line[1:], cwd=folder, environ=environ)
    assert done.returncode == 0, done.stderr
    events = [json.loads(line) for line in (folder / "run" / "events.jsonl").read_text().splitlines()]
    ends = sorted((event["rank"], event["measures"]) for event in events if event["event"] == "exit")
    return [measures for _, measures in ends], done.stdout


WAYS = {
    "one rank": ["-n", "1"],
    "scaled": ["-n", "2", "--scale", "data"],
    "exact": ["-n", "2", "--scale", "data", "--exact", "4"],
    "sharded": ["-n", "2", "--scale", "fsdp"],
    "exec": ["-n", "2", "--scale", "data", "--launch", "exec"],
    "saved": ["-n", "2", "--scale", "data", "--checkpoint-every", "3steps"],
}


@pytest.mark.parametrize("way", some(list(WAYS), 3))
def test_script_for_one_device(tmp_path: Path, way: str) -> None:
    """From the end of the first step on: seven batches of twelve samples, each with the wait that its dataset makes."""
    ranks, text = measured(tmp_path, SCRIPT.replace("END", 'print("seconds", time.time() - began)'), *WAYS[way])
    assert sum(measures["samples"] for measures in ranks) == 7 * 12
    for measures in ranks:
        assert measures["data_seconds"] > 7 * 0.02 / len(ranks)
        assert measures["backward_seconds"] > 0
        assert measures["optimizer_seconds"] > 0
        assert "tokens" not in measures
        assert "peak_allocated_bytes" not in measures  # no device
    losses = [float(loss) for loss in re.findall(r"loss (\S+)", text)]
    mean = sum(measures["loss"] for measures in ranks) / len(ranks)
    if float(text.rpartition("seconds ")[2]) < 0.9:
        assert min(abs(mean - loss) for loss in losses) < 1e-5
    else:  # a rank reads a loss once in a second: on a busy machine it may be that of another step
        assert min(losses) <= mean <= max(losses)
    assert ranks[0]["save_seconds"] > 0
    assert ("communication_seconds" in ranks[0]) == ("check_seconds" in ranks[0]) == (len(ranks) > 1)


@pytest.mark.parametrize("launch", some(["warm", "exec"], 2))
def test_script_that_distributes_itself(tmp_path: Path, launch: str) -> None:
    """Each rank waits for the other: one in the collectives of its model, the other in a barrier."""
    first, second = measured(tmp_path, OF_ITSELF, "-n", "2", "--launch", launch)[0]
    for measures in (first, second):
        assert measures["communication_seconds"] > 4 * 0.04
        assert not {"samples", "data_seconds", "save_seconds"} & set(measures)


@pytest.mark.parametrize("way", ["fully_shard", "tensor", "pipeline"])
def test_wait_for_a_rank_that_holds_a_part_of_the_model(tmp_path: Path, way: str) -> None:
    """Rank 1 computes 50 ms longer in each half of the model that it has; rank 0 waits inside of PyTorch's own code."""
    num_halves = 1 if way == "pipeline" else 2
    first, second = measured(tmp_path, SPLIT, "-n", "2", "--scale", "off", arguments=(way,))[0]
    assert first["communication_seconds"] > 5 * num_halves * 0.05 * 0.8
    assert second["communication_seconds"] < first["communication_seconds"] / 2


def test_loss_that_is_no_number(tmp_path: Path) -> None:
    """Each loss counts, however short the steps are."""
    script = SCRIPT.replace("END", "").replace("loss.backward()", "loss = loss * 1e60; loss.backward()")
    (measures,) = measured(tmp_path, script)[0]
    assert measures["losses_not_finite"] == 8
    assert "loss" not in measures


def test_traceback_is_that_of_python(tmp_path: Path) -> None:
    """Neither a scaled script nor one that distributes itself shows the frames that measure."""
    (tmp_path / "train.py").write_text(OF_ITSELF.replace("model(text)", "model(text).detach()"))
    done = warm.run(["-m", "echelon", "run", "-n", "2", "train.py"], cwd=tmp_path)
    assert "does not require grad" in done.stderr
    assert "measuring" not in done.stderr


def test_time_of_inner_spans_is_not_that_of_outer_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter([0.0, 1.0, 3.0, 7.0, 8.0])
    monkeypatch.setattr(spans, "on_processor", lambda: (next(clock), None))
    sums: dict[str, float] = {}

    def add(name: str, value: float) -> None:
        sums[name] = sums.get(name, 0.0) + value

    of_rank = spans.Spans(add)
    of_rank.begin("optimizer_seconds")
    of_rank.begin("communication_seconds")
    of_rank.end(1)
    of_rank.become("save_seconds")
    of_rank.end(0)
    assert sums == {"communication_seconds": 2.0, "optimizer_seconds": 7.0 - 2.0, "save_seconds": 1.0}


def test_time_on_a_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """An event has its time once the device has reached it; nobody waits for that."""

    class Event:
        reached = 0

        def __init__(self, milliseconds: float) -> None:
            self.milliseconds = milliseconds

        def query(self) -> bool:
            return Event.reached >= self.milliseconds

        def elapsed_time(self, other: "Event") -> float:
            return other.milliseconds - self.milliseconds

    moments = iter([(0.0, 0), (0.1, 500), (0.2, 500), (0.3, 900)])
    monkeypatch.setattr(spans, "on_processor", lambda: ((one := next(moments))[0], Event(one[1])))
    monkeypatch.setattr(spans.devices, "is_used", lambda: False)
    told: list[tuple[str, float]] = []
    of_rank = spans.Spans(lambda name, seconds: told.append((name, seconds)))
    for name in ("backward_seconds", "data_seconds"):
        of_rank.begin(name)
        of_rank.end(0)
    of_rank.collect_finished()
    assert told == []
    Event.reached = 600
    of_rank.collect_finished()
    assert told == [("backward_seconds", 0.5)]
    Event.reached = 900
    of_rank.collect_finished()
    assert told[1:] == [("data_seconds", 0.4)]


def test_collective_beside_the_training_takes_no_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """What another queue of the device does while the training computes is not counted; its result is waited for."""
    told: list[str] = []
    of_rank = spans.Spans(lambda name, _: told.append(name))
    queue = ["training"]
    monkeypatch.setattr(spans.devices, "is_used", lambda: True)
    monkeypatch.setattr(spans.devices, "is_capturing", lambda: False)
    monkeypatch.setattr(spans.devices, "current_queue", lambda: queue[0])
    monkeypatch.setattr(spans, "on_device", lambda: (0.0, None))
    of_rank.collect_finished()
    collective = _timed(of_rank, lambda: None, "communication_seconds")
    queue[0] = "all-gathers"
    collective()
    assert told == []
    queue[0] = "training"
    collective()
    assert told == ["communication_seconds"]


def test_thread_that_goes_backward_trains(monkeypatch: pytest.MonkeyPatch) -> None:
    """A device's pass backward runs in a thread of PyTorch's, which waits for ranks too; other threads do not count."""
    import torch

    of_rank = spans.Spans(lambda *_: None)
    answers: list[bool] = []

    def ask() -> None:
        thread = threading.Thread(target=lambda: answers.append(of_rank.may_measure()))
        thread.start()
        thread.join()

    of_rank.begin("backward_seconds")
    ask()
    weight = torch.ones((), requires_grad=True)
    weight.register_hook(lambda _: answers.append(of_rank.may_measure()))
    thread = threading.Thread(target=weight.mul(2).backward)
    thread.start()
    thread.join()
    of_rank.end(0)
    ask()
    assert answers == [False, True, False]


def test_size_of_batches() -> None:
    import torch

    text = torch.zeros(4, 16, dtype=torch.int64)
    assert size_of({"input_ids": text, "labels": text}) == {"samples": 4, "elements": 64, "tokens": 64}
    assert size_of([(torch.zeros(8, 3, 2, 2), torch.zeros(8))]) == {"samples": 8, "elements": 96}
    assert size_of("no tensor") == size_of(torch.tensor(1.0)) == {}


def test_ranks_that_compute_a_batch_together_count_it_once(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    monkeypatch.setattr(measuring_measures, "_num_ranks", 1)
    measuring_measures.share(4)
    assert measuring_measures.of_rank(torch.zeros(8, 3)) == {"samples": 2.0, "elements": 6.0}


IN_BACKWARD = """
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
model = torch.nn.Sequential(torch.nn.Linear(6, 3), torch.nn.Linear(3, 1))
optimizers = {each: torch.optim.SGD([each], lr=0.1) for each in model.parameters()}


def step(parameter):
    optimizers[parameter].step()
    optimizers[parameter].zero_grad()


for each in model.parameters():
    each.register_post_accumulate_grad_hook(step)
for _ in range(5):
    model(torch.randn(4, 6)).pow(2).mean().backward()
print("trained")
"""


def test_steps_within_backward(tmp_path: Path) -> None:
    """As a script saves memory: each weight has its optimizer, which steps once its gradient is there."""
    ranks, text = measured(tmp_path, IN_BACKWARD, "-n", "2", "--scale", "off")
    assert "trained" in text
    for measures in ranks:
        assert measures["optimizer_seconds"] > 0
        assert measures["backward_seconds"] > 0


@pytest.mark.parametrize("how", ["step(closure)", "step(closure=closure)"])
def test_closure_is_no_time_of_the_optimizer(monkeypatch: pytest.MonkeyPatch, how: str) -> None:
    """A script that computes its loss within the step, as LBFGS and Lightning ask for."""
    import torch

    clock = [0.0]
    monkeypatch.setattr(spans, "on_processor", lambda: (clock[0], None))
    written: list[Any] = []
    install(["optimizer_seconds"], written.append, lambda _: None)
    try:
        parameter = torch.nn.Parameter(torch.ones(2))
        optimizer = torch.optim.SGD([parameter], lr=0.1)

        def closure() -> float:
            clock[0] += 5.0
            return 2.0

        for _ in range(2):
            result = eval(f"optimizer.{how}", {"optimizer": optimizer, "closure": closure})
        assert (result, written[-1]) == (2.0, [0.0])
        assert clock == [10.0]
    finally:
        patches.undo()


def test_step_that_failed_leaves_no_span(tmp_path: Path) -> None:
    failing = SCRIPT.replace(
        "optimizer.step()",
        "loss.grad_fn\n        try:\n            optimizer.step(lambda: 1 / 0)\n        except ZeroDivisionError:\n"
        "            optimizer.step()",
    )
    (measures,) = measured(tmp_path, failing.replace("END", "time.sleep(0.05)"), "-n", "1")[0]
    assert measures["optimizer_seconds"] < 0.05 * 7  # the time after the failure is not the optimizer's


def test_captured_graph_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """While a stream is captured nothing asks the device how far it is, and no loss is taken."""
    import torch

    class Untouchable:
        def query(self) -> bool:
            raise AssertionError("a question during a capture ends it")

    written: list[Any] = []
    measures = Measures(["samples"], written.append)
    measures.spans._pending.append(("backward_seconds", "", Untouchable(), Untouchable()))
    monkeypatch.setattr(spans.devices, "is_capturing", lambda: True)
    measures.spans._now = spans.on_device
    assert not measures.spans.may_measure()
    monkeypatch.setattr(spans.devices, "is_accelerator", lambda _: True)
    measures.bad_steps.note("loss", torch.tensor(1.0))
    measures.step()
    assert written == []
    assert not measures.bad_steps._open
