"""Measure each strategy beside the same written by hand with PyTorch alone: `python -m benchmarks.strategies`.

Both are started by `echelon run --scale off` and time their own steps after a warm-up; they are run in turns, and each
turn begins with the other one. A figure is the median with the least and the greatest value. Examples:

    python -m benchmarks.strategies --quick --only replicate shard
    python -m benchmarks.strategies --ranks 4 --rounds 5
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

from benchmarks import account
from benchmarks.figures import Figure, Row, Spread, at_most_of_theirs, markdown
from benchmarks.meter import Meter, clean_environ, tool

OF_HAND = at_most_of_theirs(1 / 0.97)  # at least 0.97 of its steps per second
NUM_WARM, NUM_STEPS = 5, 30
WIDTH, HEADS, LENGTH, BLOCKS, CLASSES, ROWS = 256, 8, 64, 4, 512, 8
FIELDS: dict[str, Callable[[int], dict[str, Any]]] = {
    "replicate": lambda n: {"replicate": n},
    "accumulation": lambda n: {"replicate": n, "accumulation": 2},
    "zero-1": lambda n: {"shard": n, "reshard": "never"},
    "zero-2": lambda n: {"shard": n, "reshard": "after-backward"},
    "zero-3": lambda n: {"shard": n},
    "checkpointing": lambda n: {"shard": n, "checkpointing": "full"},
    "tensor": lambda n: {"tensor": n},
    "pipeline": lambda n: {"pipeline": n, "accumulation": n},
}


def main() -> int:
    """Measure the rows asked for and print them."""
    if sys.argv[1:2] == ["--rank"]:
        _be_rank(*sys.argv[2:5])
        return 0
    options = _options()
    with account.opened() as counted, tempfile.TemporaryDirectory(prefix="benchmark-") as folder:
        num_rounds = 1 if options.quick else options.rounds
        root = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
        environ = {**clean_environ(), "PYTHONPATH": os.pathsep.join([root, os.environ.get("PYTHONPATH", "")])}
        meter = Meter(account=counted, folder=folder, num_rounds=num_rounds, num_calls=1, environ=environ)
        rows = [_measure(meter, name, options.ranks) for name in options.only or FIELDS]
    print(json.dumps([asdict(row) for row in rows], indent=1) if options.json else markdown(rows))
    return 0 if all(figure.is_reached for row in rows for figure in row.figures) else 1


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.strategies",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--only", nargs="+", choices=FIELDS, metavar="ROW", help=f"of {', '.join(FIELDS)}")
    parser.add_argument("--ranks", type=int, default=2, metavar="N", help="2 by default")
    parser.add_argument("--rounds", type=int, default=5, metavar="N", help="how many pairs are run; 5 by default")
    parser.add_argument("--quick", action="store_true", help="one pair only: to see that all of it works")
    parser.add_argument("--json", action="store_true", help="print every single value")
    return parser.parse_args()


def _measure(meter: Meter, name: str, num_ranks: int) -> Row:
    """Run both in turns; whoever was second begins the next turn."""
    print(f"measuring {name} …", file=sys.stderr)
    found: dict[str, list[tuple[float, float]]] = {"ours": [], "theirs": []}
    for turn in range(meter.num_rounds):
        for who in ("ours", "theirs") if turn % 2 else ("theirs", "ours"):
            marks = meter.marks()
            start = [tool("echelon"), "run", "-n", str(num_ranks), "--scale", "off", os.path.abspath(__file__)]
            meter.run([*start, "--rank", name, who, marks])
            with open(os.path.join(marks, "steps")) as file:
                milliseconds, loss = map(float, file.read().split())
            found[who].append((milliseconds, loss))
    losses = [loss for each in found.values() for _, loss in each]
    assert max(losses) - min(losses) <= 1e-4 * max(losses), losses  # else it is not the same training
    ours, theirs = (Spread(tuple(one for one, _ in found[who])) for who in ("ours", "theirs"))
    figure = Figure(what="one step, median", unit="ms", ours=ours, theirs=theirs, beside="by hand", target=OF_HAND)
    ratio = theirs.over(ours)
    note = f"steps/s: {ratio.median:.3f} ({min(ratio.values):.3f}–{max(ratio.values):.3f}) of that by hand"
    print(f"  {note}", file=sys.stderr)
    return Row(title=f"{name}, {num_ranks} ranks", figures=(figure,), notes=(note,))


# What follows runs in the ranks


def _be_rank(name: str, who: str, folder: str) -> None:
    """Train, and let rank 0 write how long a step took, and the last loss."""
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    step = (_ours if who == "ours" else _theirs)(name)
    generator = torch.Generator().manual_seed(2)
    inputs, targets = (torch.randint(CLASSES, (ROWS, LENGTH), generator=generator) for _ in range(2))
    seconds, loss = [], None
    for number in range(NUM_WARM + NUM_STEPS):
        began = time.perf_counter()
        loss = step(inputs, targets)
        if number >= NUM_WARM:
            seconds.append(time.perf_counter() - began)
    total = loss.detach().double().reshape(1)  # type: ignore[attr-defined]
    if who == "theirs":
        dist.all_reduce(total, op=dist.ReduceOp.SUM if name == "pipeline" else dist.ReduceOp.AVG)
    if dist.get_rank() == 0:
        with open(os.path.join(folder, "steps"), "w") as file:
            file.write(f"{statistics.median(seconds) * 1e3} {total.item()}")
    dist.barrier()


def _model() -> Any:
    """Return a transformer whose attention takes as many heads as its matrices give."""
    import torch
    from torch import nn
    from torch.nn import functional

    class Attention(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.q_proj, self.k_proj, self.v_proj, self.o_proj = (nn.Linear(WIDTH, WIDTH) for _ in range(4))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            rows, length, _ = x.shape
            q, k, v = (
                layer(x).view(rows, length, -1, WIDTH // HEADS).transpose(1, 2)
                for layer in (self.q_proj, self.k_proj, self.v_proj)
            )
            y = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
            return self.o_proj(y.transpose(1, 2).reshape(rows, length, -1))  # type: ignore[no-any-return]

    class Mlp(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.up_proj, self.down_proj = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.down_proj(functional.gelu(self.up_proj(x)))  # type: ignore[no-any-return]

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm_1, self.attention, self.norm_2, self.mlp = (
                nn.LayerNorm(WIDTH), Attention(), nn.LayerNorm(WIDTH), Mlp(),
            )  # fmt: skip

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = x + self.attention(self.norm_1(x))
            return x + self.mlp(self.norm_2(x))  # type: ignore[no-any-return]

    torch.manual_seed(1)
    return nn.Sequential(
        nn.Embedding(CLASSES, WIDTH), nn.Sequential(*(Block() for _ in range(BLOCKS))), nn.Linear(WIDTH, CLASSES)
    )


def _loss(outputs: Any, targets: Any) -> Any:
    from torch.nn import functional

    return functional.cross_entropy(outputs.flatten(0, 1), targets.flatten())


PLAN = {
    **{f"1.*.attention.{name}_proj": "colwise" for name in "qkv"}, "1.*.attention.o_proj": "rowwise",
    "1.*.mlp.up_proj": "colwise", "1.*.mlp.down_proj": "rowwise",
}  # fmt: skip


def _ours(name: str) -> Any:
    import torch

    import echelon

    run = echelon.start()
    strategy = echelon.Strategy(**FIELDS[name](run.world.size))
    sample = torch.zeros(ROWS, LENGTH, dtype=torch.int64)
    trained = run.parallelize(_model(), strategy, loss=_loss, sample=sample, plan=PLAN)
    trained.optimize(torch.optim.AdamW, lr=1e-3)
    return lambda inputs, targets: trained.step(inputs, targets, clip=1.0).loss


def _theirs(name: str) -> Any:
    """Return a step as one writes it by hand."""
    import torch
    import torch.distributed as dist
    from torch import nn

    dist.init_process_group("gloo")
    size, rank, model = dist.get_world_size(), dist.get_rank(), _model()
    if name == "pipeline":
        return _pipeline_by_hand(model, rank, size)
    model = _spread_by_hand(name, model, size)
    if name == "zero-1":
        from torch.distributed.optim import ZeroRedundancyOptimizer

        optimizer: Any = ZeroRedundancyOptimizer(model.parameters(), optimizer_class=torch.optim.AdamW, lr=1e-3)
    else:
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, foreach=False)

    def step(inputs: Any, targets: Any) -> Any:
        if name != "tensor":
            inputs, targets = (one.chunk(size)[rank] for one in (inputs, targets))
        optimizer.zero_grad()
        parts = 2 if name == "accumulation" else 1
        total = 0.0
        for number, (part, wanted) in enumerate(zip(inputs.chunk(parts), targets.chunk(parts), strict=True)):
            model.__dict__["require_backward_grad_sync"] = number == parts - 1  # what no_sync() sets
            loss = _loss(model(part), wanted) / parts
            loss.backward()
            total = total + loss.detach()
        if name == "tensor":
            _clip_by_hand(model)
        else:
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        return total

    return step


def _spread_by_hand(name: str, model: Any, size: int) -> Any:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.nn.parallel import DistributedDataParallel

    if name in ("replicate", "accumulation", "zero-1"):
        return DistributedDataParallel(model, gradient_as_bucket_view=True)
    mesh = init_device_mesh("cpu", (size,))
    if name == "tensor":
        from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

        styles = {"colwise": ColwiseParallel, "rowwise": RowwiseParallel}
        plan = {path.replace("*", str(block)): styles[word]() for block in range(BLOCKS) for path, word in PLAN.items()}
        return parallelize_module(model, mesh, plan)
    from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
    from torch.distributed.fsdp import fully_shard

    for number, block in enumerate(model[1]):
        if name == "checkpointing":
            model[1][number] = block = checkpoint_wrapper(block)
        fully_shard(block, mesh=mesh, reshard_after_forward=name != "zero-2")
    return fully_shard(model, mesh=mesh, reshard_after_forward=False)


def _clip_by_hand(model: Any) -> None:
    """Clip by the norm of cut and of whole gradients, which clip_grad_norm_ does not take together."""
    import torch
    import torch.distributed as dist

    cut = [one.grad.to_local() for one in model.parameters() if hasattr(one.grad, "to_local")]
    placed = [one.grad for one in model.parameters() if hasattr(one.grad, "to_local")]
    whole = [one.grad for one in model.parameters() if not hasattr(one.grad, "to_local")]
    square = torch.stack([
        one.square().sum() / (1 if placement.placements[0].is_shard() else dist.get_world_size())
        for one, placement in zip(cut, placed, strict=True)
    ]).sum()  # fmt: skip
    dist.all_reduce(square)
    norm = (square + torch.stack(torch._foreach_norm(whole)).square().sum()).sqrt()
    torch._foreach_mul_([*cut, *whole], (1.0 / (norm + 1e-6)).clamp(max=1.0))


def _pipeline_by_hand(model: Any, rank: int, size: int) -> Any:
    import torch
    import torch.distributed as dist
    from torch import nn
    from torch.distributed.pipelining import PipelineStage, Schedule1F1B

    layers = [*([model[0]] if rank == 0 else []), *model[1][rank * BLOCKS // size : (rank + 1) * BLOCKS // size]]
    part = nn.Sequential(*layers, *([model[2]] if rank == size - 1 else []))
    stage = PipelineStage(part, rank, size, torch.device("cpu"))
    schedule = Schedule1F1B(stage, n_microbatches=size, loss_fn=_loss)
    optimizer = torch.optim.AdamW(part.parameters(), lr=1e-3, foreach=False)

    def step(inputs: Any, targets: Any) -> Any:
        optimizer.zero_grad()
        losses: list[Any] = []
        schedule.step(
            *((inputs,) if rank == 0 else ()),
            **({"target": targets, "losses": losses} if rank == size - 1 else {}),
        )
        gradients = [one.grad for one in part.parameters()]
        square = torch.stack(torch._foreach_norm(gradients)).square().sum()
        dist.all_reduce(square)
        torch._foreach_mul_(gradients, (1.0 / (square.sqrt() + 1e-6)).clamp(max=1.0))
        optimizer.step()
        return torch.stack(losses).mean() if losses else torch.zeros(())

    return step


if __name__ == "__main__":
    sys.exit(main())
