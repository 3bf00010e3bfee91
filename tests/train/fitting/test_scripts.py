"""Scripts in the styles of tutorials, unchanged: each is traced without its device, and leaves nothing behind."""

import textwrap
from pathlib import Path
from typing import Any

import pytest
from tests.tiers import some
from tests.train.fitting import traces

from echelon.estimate import choice, timeline
from echelon.estimate import log as logs
from echelon.estimate.devices import Device
from echelon.estimate.verdict import judge

FOLDER = Path(__file__).parent / "scripts"
NAMES = some(sorted(path.stem for path in FOLDER.glob("*.py")), 12)
START = """
    import torch
    from torch import nn
    model = nn.Linear(4, 2).to("cuda")
    optimizer = torch.optim.Adam(model.parameters())
    x = torch.randn(8, 4).cuda()
"""
STEP = """
    for _ in range(3):
        loss = model(x).pow(2).mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
"""
PIECES = {
    "group_of_one": """
        torch.distributed.init_process_group("gloo", rank=0, world_size=1)
        model = nn.parallel.DistributedDataParallel(model, device_ids=[0])
        assert sum(bucket.numel() for bucket in model.buckets) == 10 and model.module.weight.is_cuda
        import inspect
        assert "batch_size" in inspect.signature(torch.utils.data.DataLoader.__init__).parameters
    """,
    "reads": """
        loss = model(x).sum()
        assert isinstance(loss.item(), float) and isinstance(x.tolist()[0][0], float)
        assert loss.detach().cpu().numpy().shape == () and f"{loss:.2f}" == "1.00"
        assert torch.isfinite(loss) and torch.isfinite(x).all() and not torch.isnan(loss)
        assert 0.5 in [0.5] and float(loss) == 1.0 and bool((x > 0).any()) in (True, False)
    """,
    "masks": """
        assert x[x > 0].dim() == 1 and x[torch.arange(8) < 3].shape == (3, 4)
        assert torch.nonzero(x).shape == (32, 2) and torch.unique(x).numel() == 32
        assert x.masked_select(x > 0).numel() == 32
    """,
    "copies": """
        import copy
        twin = copy.deepcopy(model)
        assert twin.weight is not model.weight and twin.weight.is_cuda and twin.weight.requires_grad
        tied = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
        tied[1].weight = tied[0].weight
        tied.cuda()
        assert tied[1].weight is tied[0].weight and len(list(tied.parameters())) == 3
    """,
    "places": """
        device = torch.device("cuda:0")
        for moved in (torch.ones(2).to(device), torch.ones(2).to("cuda", torch.float16), torch.ones(2).to(x),
                      torch.ones(2).to(device=0, dtype=torch.int64, non_blocking=True), torch.ones(2).cuda(0),
                      torch.zeros(2, device="cuda"), torch.arange(3, device=device), torch.randn_like(x), x.new_ones(2),
                      torch.tensor([1.0], device="cuda"), torch.cuda.FloatTensor([1.0])):
            assert moved.is_cuda and moved.device == device and moved.get_device() == 0, moved
        assert not x.cpu().is_cuda and x.cpu().device.type == "cpu"
        torch.set_default_device("cuda")
        assert torch.ones(3).is_cuda and nn.Linear(2, 2).weight.is_cuda
        assert torch.zeros_like(x, dtype=torch.int64).is_cuda and torch.rand_like(x, device="cpu").is_cpu
        assert x.cpu().new_ones(()).long().new_zeros(3).is_cpu and torch.empty_like(x.cpu(), device="cuda").is_cuda
        assert torch.get_default_device().type == "cuda"
        torch.set_default_device("cpu")
        torch.set_default_tensor_type("torch.cuda.HalfTensor")
        assert torch.ones(3).is_cuda and torch.ones(3).dtype == torch.float16
        torch.set_default_device(None); torch.set_default_dtype(torch.float32)
        generator = torch.Generator(device="cuda").manual_seed(1)
        assert isinstance(generator, torch.Generator) and isinstance(torch.default_generator, torch.Generator)
        assert torch.randn(2, generator=generator, device="cuda").is_cuda
    """,
    "contexts": """
        with torch.device("cuda"):
            model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))
            assert torch.eye(3).is_cuda and torch.tensor([1]).is_cuda and torch.ones(3, device="cpu").is_cpu
            with torch.device("cpu"):
                assert torch.ones(3).is_cpu
        assert torch.ones(3).is_cpu and model[0].weight.is_cuda and model[1].running_mean.is_cuda
    """,
    "meta": """
        with torch.device("meta"):
            model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))
            other = nn.Linear(4, 4)
        assert model[0].weight.is_meta and model[0].weight.device.type == "meta"
        model.to_empty(device="cuda")
        model[0].reset_parameters()
        nn.init.zeros_(model[1].weight)
        assert model[0].weight.is_cuda and model[1].num_batches_tracked.is_cuda
        other.load_state_dict(nn.Linear(4, 4).state_dict(), assign=True)
        assert other.cuda().weight.is_cuda and nn.utils.skip_init(nn.Linear, 4, 4, device="cuda").weight.is_cuda
        own = nn.Parameter(torch.empty_like(nn.Linear(2, 3, device="meta").weight, device="cuda"))
        assert own.is_cuda and own.requires_grad
    """,
    "questions": """
        assert torch.cuda.is_available() and torch.cuda.device_count() == 1 and torch.cuda.current_device() == 0
        assert torch.cuda.get_device_properties(0).total_memory == 80 << 30 and torch.cuda.mem_get_info()[1] == 80 << 30
        torch.cuda.synchronize(); torch.cuda.empty_cache(); torch.cuda.manual_seed_all(0)
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record(); end.record()
        with torch.cuda.stream(torch.cuda.Stream()):
            assert begin.elapsed_time(end) > 0
    """,
    "compiled": """
        model = torch.compile(model, mode="max-autotune")
        @torch.compile
        def twice(value):
            return 2 * value
        assert twice(x).shape == x.shape
    """,
    "data": """
        delta = torch.zeros(3, requires_grad=True)
        delta.data = delta.data + torch.ones(3)
        model.weight.data = torch.ones(2, 4)
        model.weight.data.copy_(torch.zeros(2, 4))
    """,
    "groups": """
        rows, ends = torch.ones(8, 4).cuda(), torch.tensor([4, 6, 8], dtype=torch.int32).cuda()
        experts = torch.randn(3, 4, 16, device="cuda", requires_grad=True)
        product = torch.nn.functional.grouped_mm(rows, experts, offs=ends)
        product.sum().backward()
        assert product.shape == (8, 16) and experts.grad.shape == (3, 4, 16)
        assert torch.nn.functional.grouped_mm(rows.T, product, offs=ends).shape == (3, 4, 16)
    """,
    "files": """
        import os, shutil
        torch.save(model.state_dict(), "model.pt")
        os.makedirs("runs/one", exist_ok=True)
        with open("runs/one/log.txt", "w") as file:
            file.write("epoch 1")
        assert open("runs/one/log.txt").read() == "epoch 1"
        assert os.path.isdir("runs/one") and os.listdir("runs") == ["one"] and os.stat("runs/one/log.txt").st_size == 7
        assert [entry.name for entry in os.scandir("runs/one")] == ["log.txt"] and not os.path.exists("runs/two")
        os.close(os.open("low.bin", os.O_WRONLY | os.O_CREAT))
        print("said"); os.system("echo said")
    """,
}
"""What a script does before it trains."""
HALF = """
    import torch
    from torch import nn
    model = nn.Linear(64, 1000).to("cuda")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    x, labels = torch.randn(512, 64).cuda(), torch.zeros(512, dtype=torch.int64).cuda()
    for _ in range(3):
        with torch.autocast("cuda", torch.bfloat16):
            loss = nn.functional.cross_entropy(model(x), labels, {}label_smoothing={})
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
"""
HALVES = {"half": HALF.format("", 0.0), "smoothed": HALF.format("ignore_index=1, ", 0.1)}
CURVE = """
    import torch
    from torch import nn
    class Curve(nn.Module):
        def __init__(self):
            super().__init__()
            self.a = nn.Parameter(torch.randn(()))
        def forward(self, x):
            return self.a * x
    x, model = torch.linspace(-3, 3, 2000), Curve()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    for step in range(30):
        loss = nn.functional.mse_loss(model(x), x.sin())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
"""
PHASES = {
    "in_backward": ("""
    optimizers = {weight: torch.optim.AdamW([weight]) for weight in model.parameters()}
    def update(weight):
        optimizers[weight].step()
        optimizers[weight].zero_grad()
    for weight in model.parameters():
        weight.register_post_accumulate_grad_hook(update)
    for _ in range(4):
        model(x).sum().backward()
    """, 2 * ["step", "backward", "optimizer"]),
    "one_step": ("""
    model(x).sum().backward()
    optimizer.step()
    """, ["step", "backward", "optimizer"]),
    "exit_after_one": ("""
    model(x).sum().backward()
    optimizer.step()
    raise SystemExit
    """, ["step", "backward", "optimizer"]),
    "long_accumulation": ("""
    for number in range(1, 1000):
        (model(torch.randn(8, 4, device="cuda")).mean() / 128).backward()
        if number % 128 == 0:
            optimizer.step()
            optimizer.zero_grad()
    """, 2 * ["step", *4 * ["backward"], "optimizer"]),
    "short_accumulation": ("""
    for number in range(1, 20):
        model(x).mean().backward()
        if number % 3 == 0:
            optimizer.step()
    """, 2 * ["step", *3 * ["backward"], "optimizer"]),
    "lengths": ("""
    for number in range(1, 20):
        model(torch.randn(4 + number % 2, 4, device="cuda")).mean().backward()
        if number % 8 == 0:
            optimizer.step()
    """, 2 * ["step", *8 * ["backward"], "optimizer"]),
    "gradients_of_inputs": ("""
    optimizer.zero_grad(set_to_none=False)
    for weight in model.parameters():
        weight.grad = torch.zeros_like(weight)
    for _ in range(3):
        for _ in range(5):
            inside = torch.randn(8, 4, device="cuda", requires_grad=True)
            torch.autograd.grad(model(inside).sum(), inside)
        model(x).sum().backward()
        optimizer.step()
    """, 2 * ["step", *6 * ["backward"], "optimizer"]),
    "two_optimizers": ("""
    other = torch.optim.SGD([model.bias], lr=0.1)
    for _ in range(3):
        model(x).sum().backward()
        optimizer.step()
        other.step()
        other.zero_grad()
    """, 2 * ["step", "backward", "optimizer", "optimizer"]),
    "closure": ("""
    def closure():
        optimizer.zero_grad()
        loss = model(x).sum()
        loss.backward()
        return loss
    for _ in range(3):
        optimizer.step(closure)
    """, 2 * ["step", "backward", "optimizer"]),
    "own_gradients": ("""
    for _ in range(3):
        error = model(x).detach()
        model.weight.grad, model.bias.grad = error.t() @ x, error.mean(0)
        optimizer.step()
    """, 2 * ["step", "backward", "optimizer"]),
    "functions": ("""
    from torch.func import functional_call, grad, vmap
    def loss_of(weights, row):
        return functional_call(model, weights, (row.unsqueeze(0),)).sum()
    for _ in range(3):
        weights = {name: weight.detach() for name, weight in model.named_parameters()}
        gradients = vmap(grad(loss_of), in_dims=(None, 0))(weights, x)
        for name, weight in model.named_parameters():
            weight.grad = gradients[name].mean(0)
        optimizer.step()
    """, 2 * ["step", "backward", "optimizer"]),
    "moved_at_the_end": ("""
    try:
        for _ in range(3):
            model(x).sum().backward()
            optimizer.step()
    finally:
        model.cpu()
    """, 2 * ["step", "backward", "optimizer"]),
    "no_module": ("""
    weight = torch.zeros(4, 1, device="cuda", requires_grad=True)
    optimizer = torch.optim.Adam([weight])
    for _ in range(3):
        (x @ weight).sum().backward()
        optimizer.step()
    """, 2 * ["step", "backward", "optimizer"]),
}  # fmt: skip
"""What a script does with START, and the parts of its steps that the trace marks."""
FAILING = {
    "raises": (START + "    raise ValueError('a wrong shape')\n", "ValueError", "a wrong shape", "raises.py:7"),
    "exits": (START + "    import sys; sys.exit(3)\n", "SystemExit", "it ends with exit code 3", ""),
    "lacks": (START + "    open('absent.bin', 'rb')\n", "FileNotFoundError", "absent.bin", "lacks.py:7"),
    "ranks": (
        START + "    torch.distributed.init_process_group('nccl')\n",
        "Distributes",
        "init_process_group() is called",
        "ranks.py:7",
    ),
    "imports": ("import absent_package\n", "ModuleNotFoundError", "absent_package", "imports.py:1"),
}


RECURRENT = """
    class Turned(nn.Module):
        def __init__(self):
            super().__init__()
            self.rnn = nn.LSTM(4, 2)

        def forward(self, x):
            return self.rnn(x.transpose(0, 1))
"""
LSTM_STEP = """
    optimizer = torch.optim.Adam(model.parameters())
    for _ in range(3):
        model(x)[0].sum().backward()
        optimizer.step()
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("scripts")


@pytest.fixture(scope="module")
def results(folder: Path) -> dict[str, dict[str, Any]]:
    texts = {name: START + textwrap.indent(textwrap.dedent(piece), "    ") + STEP for name, piece in PIECES.items()}
    texts |= {name: text for name, (text, *_) in FAILING.items()}
    texts |= HALVES | {name: START + text for name, (text, _) in PHASES.items()}
    texts |= {
        "curve": CURVE,
        "stepless": START,
        "time_first": START
        + RECURRENT
        + "    x, model = torch.randn(20, 4).cuda(), nn.LSTM(4, 2).cuda()\n"
        + LSTM_STEP,
        "transposed": START + RECURRENT + "    x, model = torch.randn(8, 20, 4).cuda(), Turned().cuda()\n" + LSTM_STEP,
        "assumed": START + "    n = int(x[0, 0])\n    model(torch.ones(n, 4).cuda())\n" + STEP,
    }
    paths = {name: FOLDER / f"{name}.py" for name in NAMES}
    (folder / "texts").mkdir()
    for name, text in texts.items():
        paths[name] = folder / "texts" / f"{name}.py"
        paths[name].write_text(textwrap.dedent(text), "utf-8")
    jobs = {name: {"trace": traces.order(path)} for name, path in paths.items()}
    jobs["assumed"]["trace"]["assumed"] = {"assumed.py:7": 5}
    return traces.run(folder, jobs)


@pytest.mark.parametrize("name", [*NAMES, *PIECES, *HALVES])
def test_script_is_traced(results: dict[str, dict[str, Any]], folder: Path, name: str) -> None:
    """Two steps are seen, on the device; nothing is written, and nothing is said."""
    log = results[name]
    assert log["failed"] is None, log["failed"]["trace"]
    assert log["steps"] == 2
    assert log["uses_device"]
    assert [event for event in log["events"] if isinstance(event, str)][-1] == "end"
    assert traces.kinds(log)["parameter"] > 0
    assert list((folder / name).iterdir()) == []
    assert traces.said(folder, name) == ""


def test_computing_in_16_bits_is_noted(results: dict[str, dict[str, Any]]) -> None:
    """Under autocast a policy of fully_shard does not make activations smaller."""
    assert [results[name]["half"] for name in ("half", "curve", "moved_at_the_end")] == ["autocast", "", ""]


@pytest.mark.parametrize("name", FAILING)
def test_failure_is_named(results: dict[str, dict[str, Any]], name: str) -> None:
    """The log has the kind of the error, its message, and the line of the script."""
    _, kind, message, line = FAILING[name]
    failed = results[name]["failed"]
    assert (failed["kind"], failed["line"]) == (kind, line)
    assert message in failed["message"]
    assert results[name]["steps"] == 0


@pytest.mark.parametrize("name", PHASES)
def test_parts_of_steps(results: dict[str, dict[str, Any]], name: str) -> None:
    """Each step has its backward pass and its optimizers, and each strategy can be judged from it."""
    log = results[name]
    assert log["failed"] is None, log["failed"]["trace"]
    assert [event for event in log["events"] if isinstance(event, str)] == [*PHASES[name][1], "end"]
    assert traces.kinds(log)["parameter"] > 0
    assert bool(log["weights"]) == (name != "no_module")
    assert bool(log["notes"]) == (name == "long_accumulation")
    read = logs.read(log)
    read = timeline.repeated(read) if log["steps"] == 1 else read
    for layout in (*choice.of_one_device(read), *choice.of_several(read, 2, 2)):
        assert judge(read, layout, Device(chip="A100", memory_bytes=40 << 30)).high_bytes > 0


@pytest.mark.parametrize(
    ("name", "said"),
    [("curve", "with a tensor of shape (2000,): this is one sample, and 2 ranks cannot share it"),
     ("time_first", "LSTM has batch_first=False; the ranks shared dim 0, which has 20 time steps"), ("transposed", ""),
     ("no_module", "called no model"), ("one_step", ""), ("reads", ""), ("closure", "")],
)  # fmt: skip
def test_batch_that_ranks_cannot_share(results: dict[str, dict[str, Any]], name: str, said: str) -> None:
    """The trace says what `echelon run --scale data` would say of the batch."""
    assert said in results[name]["unshared"]
    assert bool(said) == bool(results[name]["unshared"])


def test_second_step_is_the_first_again(results: dict[str, dict[str, Any]]) -> None:
    """A script of one step takes what it would take in a loop."""
    once = timeline.repeated(logs.read(results["one_step"]))
    loop = logs.read(results["reads"])  # the same model and batch, in a loop
    assert timeline.peak(once).parts["state"] == timeline.peak(loop).parts["state"]
    assert [event for event in once.events if isinstance(event, str)].count("optimizer") == 2


def test_script_without_a_step(results: dict[str, dict[str, Any]]) -> None:
    """A script that trains nothing is no failure, and has no step."""
    assert results["stepless"]["failed"] is None
    assert results["stepless"]["steps"] == 0


def test_assumed_value(results: dict[str, dict[str, Any]]) -> None:
    """A value that the user gives for a line decides the shape that follows."""
    log = results["assumed"]
    assert log["failed"] is None
    assert log["rows"] == 5
    assert log["notes"] == ["assumed.py:7 reads a tensor's value, and 5 was assumed"]


def test_compilation_is_told(results: dict[str, dict[str, Any]]) -> None:
    """The log says that the model was not compiled."""
    assert any("torch.compile was left out" in note for note in results["compiled"]["notes"])


@pytest.mark.parametrize("name", HALVES)
def test_cross_entropy_under_autocast(results: dict[str, dict[str, Any]], name: str) -> None:
    """A device keeps the logarithms in half precision, and the same in float32 as the loss's input.

    An H200 kept both for BERT: benchmarks/gpu/peaks.jsonl.
    """
    log = results[name]
    last = max(position for position, event in enumerate(log["events"]) if event == "backward")
    live: set[int] = set()
    for event in log["events"][:last]:
        if isinstance(event, int):
            (live.add if event >= 0 else live.remove)(max(event, -event - 1))
    large = sorted(log["tensors"][number][0] for number in live if log["tensors"][number][0] >= 512 * 1000)
    assert large == [512 * 1000 * 2, 512 * 1000 * 4]
