"""What ranks do in these tests: train a model under a strategy, and say all that can be compared."""

import io
import os
from typing import Any

import torch
from tests.train.strategies import models

from echelon.orders import codec, records
from echelon.train import start
from echelon.train.strategies import spreading
from echelon.train.strategies.strategy import Strategy


def parallelized(kind: str, strategy: Strategy, **wishes: Any) -> Any:
    model = models.make(kind)
    wishes.setdefault("loss", models.loss_of)
    if strategy.pipeline > 1:
        wishes.setdefault("sample", models.batches(kind)[0][0])
    return start.start().parallelize(model, strategy, **wishes)


def cross(num_queries: int, num_keys: int, is_causal: bool) -> tuple[float, float]:
    """Return how far attention to other tokens is from that of one device, and so its gradients."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor

    from echelon.train.strategies import attention

    torch.manual_seed(3)
    original, mesh = torch.nn.functional.scaled_dot_product_attention, init_device_mesh("cpu", (2,))
    sizes = (num_queries, num_keys, num_keys)
    wholes = [torch.randn(2, 4, size, 8, requires_grad=True) for size in sizes]
    parts = [distribute_tensor(one.detach(), mesh, [Shard(2)]).requires_grad_() for one in wholes]
    expected = original(*wholes, is_causal=is_causal)
    found = attention.make(original, mesh, "all-gather")(*parts, is_causal=is_causal)
    for output in (expected, found.redistribute(placements=[Replicate()])):
        output.square().sum().backward()
    off = max(float((part.grad.full_tensor() - one.grad).abs().max()) for part, one in zip(parts, wholes, strict=True))
    return float((found.full_tensor() - expected).abs().max()), off


def train(kind: str, strategy: Strategy, optimizer: str = "adamw", clip: float = 0.5, wishes: Any = None) -> Any:
    """Train, and save and load half way."""
    trained = parallelized(kind, strategy, **(wishes or {}))
    maker, settings = models.OPTIMIZERS[optimizer]
    trained.optimize(maker, **settings)
    steps = []
    for number, (inputs, targets) in enumerate(models.batches(kind)):
        if number == models.NUM_STEPS // 2:
            trained.save("half.pt")
            trained = parallelized(kind, strategy, **{**(wishes or {}), "state": "half.pt"})
            trained.optimize(maker, **settings)
            trained.load_optimizer(torch.load("half.pt", weights_only=False)["optimizer"])
        steps.append(trained.step(inputs, targets, clip=clip))
    return {
        "losses": [step.loss.item() for step in steps],
        "norms": [step.gradient_norm.item() for step in steps],
        "evaluated": trained.evaluate(*models.batches(kind)[0]).item(),
        "model": trained.state(),
        "optimizer": trained.optimizer_state(),
    }


def recorded(folder: str, is_reordered: bool, *args: Any) -> Any:
    """Train, and write down what a proof compares."""
    steps = models.NUM_STEPS + 1  # a run ends with the last step the job asks for that
    os.environ[records.VARIABLE] = codec.write(records.RecordOrder(folder, steps, is_reordered=is_reordered))
    return train(*args)


def by_hand(kind: str, optimizer: str = "adamw", clip: float = 0.5) -> Any:
    return models.train_by_hand(kind, optimizer, clip)


def by_size(name: str, weight: torch.Tensor) -> dict[str, Any]:
    """Return the settings of a weight: what is a vector does not decay."""
    return {"weight_decay": 0.1 if weight.dim() > 1 else 0.0}


def move(kind: str, first: Strategy, second: Strategy) -> list[float]:
    """Train half under one strategy, half under another."""
    losses: list[float] = []
    for number, strategy in enumerate((first, second)):
        trained = parallelized(kind, strategy, **({"state": "half.pt"} if number else {}))
        trained.optimize(torch.optim.AdamW, lr=1e-2, eps=1e-4, groups=by_size)
        if number:
            trained.load_optimizer(torch.load("half.pt", weights_only=False)["optimizer"])
        half = models.NUM_STEPS // 2
        for inputs, targets in models.batches(kind)[half:] if number else models.batches(kind)[:half]:
            losses.append(trained.step(inputs, targets).loss.item())
        trained.save("half.pt")
    return losses


def alone_in_groups(kind: str) -> list[float]:
    """Train by hand with two groups."""
    model = models.make(kind)
    groups = [
        {"params": [one for one in model.parameters() if (one.dim() > 1) is is_matrix], "weight_decay": decay}
        for is_matrix, decay in ((True, 0.1), (False, 0.0))
    ]
    return models.losses_by_hand(model, torch.optim.AdamW(groups, lr=1e-2, eps=1e-4))


def save(kind: str, strategy: Strategy, path: str) -> None:
    trained = parallelized(kind, strategy)
    trained.optimize(torch.optim.AdamW, lr=1e-2)
    trained.step(*models.batches(kind)[0])
    trained.save(path)


def from_meta(kind: str, strategy: Strategy, path: str) -> Any:
    """Return the first weights of a model that was made on the meta device, and its losses from those of a file."""

    def made(**wishes: Any) -> Any:
        with torch.device("meta"):
            model = models.make(kind)
        torch.manual_seed(7)
        sample = models.batches(kind)[0][0]
        return start.start().parallelize(model, strategy, loss=models.loss_of, sample=sample, **wishes)

    drawn = made().state()
    losses = []
    if path:
        trained = made(state=path)
        maker, settings = models.OPTIMIZERS["adamw"]
        trained.optimize(maker, **settings)
        losses = [trained.step(*batch, clip=0.5).loss.item() for batch in models.batches(kind)]
    return {"drawn": drawn, "losses": losses}


def by_optimizer(names: list[str], strategy: Any, most_at_once: int = spreading.MOST_AT_ONCE) -> dict[str, list[float]]:
    """Return the losses of a short training with each optimizer of torch.optim: by hand if there is no strategy."""
    spreading.MOST_AT_ONCE = most_at_once
    return {name: _by_optimizer(getattr(torch.optim, name), strategy) for name in names}


def _by_optimizer(kind: Any, strategy: Any, **settings: Any) -> list[float]:
    model, settings = models.make("gpt"), {"lr": 1e-2, **settings}
    if isinstance(kind(model.parameters(), **settings).defaults.get("eps"), float):
        settings["eps"] = 1e-3  # less would make steps of what is 0 but for rounding
    if strategy is None:
        return models.losses_by_hand(model, kind(model.parameters(), **settings))
    sample = models.batches("gpt")[0][0]
    trained = start.start().parallelize(model, strategy, loss=models.loss_of, sample=sample)
    optimizer = trained.optimize(kind, **settings)
    assert isinstance(optimizer, kind)
    assert type(optimizer).__name__ == kind.__name__
    return [trained.step(inputs, targets).loss.item() for inputs, targets in models.batches("gpt")]


def with_settings(settings: dict[str, Any], strategy: Any) -> list[float]:
    """Return the losses of a short training with AdamW and these settings: by hand if there is no strategy."""
    return _by_optimizer(torch.optim.AdamW, strategy, **settings)


def read_again(strategy: Strategy) -> bool:
    """Tell whether an optimizer that was pickled steps as it did."""
    trained = parallelized("gpt", strategy)
    optimizer = trained.optimize(torch.optim.AdamW, lr=1e-2)
    trained.step(*models.batches("gpt")[0])
    file = io.BytesIO()
    torch.save(optimizer, file)
    file.seek(0)
    every = [optimizer, torch.load(file, weights_only=False)]
    for one in every:
        for weight in one.param_groups[0]["params"]:
            weight.grad = torch.ones_like(weight)
        one.step()
    pairs = zip(*(one.param_groups[0]["params"] for one in every), strict=True)
    return all(one is not other and torch.equal(one.to_local(), other.to_local()) for one, other in pairs)


def with_closure(strategy: Any) -> list[float]:
    """Return the losses of a short training with LBFGS, which asks for the loss itself."""
    model = models.make("gpt")
    trained = start.start().parallelize(model, strategy, loss=models.loss_of) if strategy else None
    optimizer = torch.optim.LBFGS(model.parameters(), lr=0.02, max_iter=3)
    if trained:
        optimizer = trained.optimize(torch.optim.LBFGS, lr=0.02, max_iter=3)
    losses = []
    for inputs, targets in models.batches("gpt"):

        def closure(inputs: Any = inputs, targets: torch.Tensor = targets) -> torch.Tensor:
            optimizer.zero_grad()
            if trained:
                return trained.backward(inputs, targets)
            loss = models.loss_of(model(inputs), targets)
            loss.backward()
            return loss

        losses.append(optimizer.step(closure).item())
    return losses


TOO_LARGE = 2.0**120


def overflow(strategy: Strategy) -> Any:
    """Step twice with a scale at which rank 0's rows alone overflow, or its stage."""
    trained = parallelized("gpt", strategy)
    trained.optimize(torch.optim.SGD, lr=0.1)
    trained.loss_scale.value = TOO_LARGE
    inputs, targets = models.batches("gpt")[0]
    found, halved = [], 0.0
    before = {name: whole_copy(one) for name, one in trained.parameters().items()}
    for scale in (TOO_LARGE, None):
        lost = trained.step(inputs, targets).was_lost
        changed = any(not torch.equal(before[name], whole_copy(one)) for name, one in trained.parameters().items())
        found.append((lost, changed))
        halved = trained.loss_scale.value if scale else halved
        trained.loss_scale.value = 1.0
    return [lost for lost, _ in found], halved, [changed for _, changed in found]


def whole_copy(tensor: Any) -> torch.Tensor:
    tensor = tensor.detach()
    return (tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor).clone()


def loader() -> Any:
    """Return a loader that draws its order from the generator of the script."""
    inputs, targets = (torch.cat(parts) for parts in zip(*models.batches("gpt"), strict=True))
    dataset = torch.utils.data.TensorDataset(inputs, targets)
    return torch.utils.data.DataLoader(dataset, batch_size=8, shuffle=True)


def from_loader(strategy: Strategy) -> Any:
    trained = parallelized("gpt", strategy)
    trained.optimize(torch.optim.SGD, lr=0.1)
    torch.manual_seed(5)
    losses, num_rows = [], 0
    for inputs, targets in trained.loader(loader()):
        num_rows = len(inputs)
        losses.append(trained.step(inputs, targets, rows=True).loss.item())
    return losses, num_rows


def alone_from_loader() -> list[float]:
    model = models.make("gpt")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    torch.manual_seed(5)
    losses = []
    for inputs, targets in loader():
        optimizer.zero_grad()
        loss = models.loss_of(model(inputs), targets)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def own_loop(strategy: Strategy) -> list[float]:
    """Train as a script does that has begun with echelon.start()."""
    run = start.start()
    model = run.parallelize(models.make("gpt"), strategy).model
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    batches = run.loader(loader())
    torch.manual_seed(5)
    losses = []
    for inputs, targets in batches:
        optimizer.zero_grad()
        loss = models.loss_of(model(inputs), targets)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1e9)
        optimizer.step()
        losses.append(loss.item())
    return losses


def dropped(strategy: Strategy) -> Any:
    """Return what came out of a model that drops out between its blocks, and what is drawn for all ranks after."""
    model = models.make("gpt")
    model.h[1] = torch.nn.Sequential(model.h[1], torch.nn.Dropout(0.5))
    outputs = []

    def loss(output: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        outputs.append(output.detach())
        return models.loss_of(output, targets)

    trained = start.start().parallelize(model, strategy, loss=loss, blocks=["h.0", "h.2", "h.3"])
    trained.optimize(torch.optim.SGD, lr=0.1)
    inputs, targets = models.batches("gpt")[0]
    trained.step(inputs[:1].expand_as(inputs), targets)
    norm = whole_copy(trained.parameters()["ln_f.weight"])
    return {"output": outputs[-1], "norm": norm, "common": torch.rand(3).tolist()}


def picture(strategy: Strategy) -> str:
    return str(parallelized("gpt", strategy).picture())


OTHER_MEANS = {
    "padding": lambda outputs, targets: torch.nn.functional.cross_entropy(
        outputs.flatten(0, 1), targets.flatten().clamp(min=0), ignore_index=0
    ),
    "weights": lambda outputs, targets: torch.nn.functional.cross_entropy(
        outputs.flatten(0, 1), targets.flatten(), weight=torch.linspace(0.1, 2, models.NUM_CLASSES)
    ),
    "pairs": lambda outputs, targets: (outputs.mean((1, 2))[:, None] - outputs.mean((1, 2))).square().mean(),
}


def other_mean(kind: str, strategy: Strategy, is_told: bool) -> tuple[str, str]:
    """Return the loss of a step, or what was refused."""
    from echelon.train.strategies.strategy import StrategyError

    wishes = {"count": lambda targets: int((targets > 0).sum())} if is_told else {}
    trained = parallelized("gpt", strategy, loss=OTHER_MEANS[kind], **wishes)
    trained.optimize(torch.optim.SGD, lr=0.1)
    try:
        return str(trained.step(*models.batches("gpt")[0]).loss.item()), ""
    except (StrategyError, RuntimeError) as error:  # the other rank sees its neighbour go
        return str(error), getattr(error, "hint", "")


def half_empty(strategy: Strategy) -> list[float]:
    trained = parallelized("gpt", strategy)
    trained.optimize(torch.optim.SGD, lr=0.1)
    losses = []
    for inputs, targets in models.batches("gpt"):
        targets[: len(targets) // 2] = -100
        losses.append(trained.step(inputs, targets).loss.item())
    return losses


def odd_model(kind: str) -> torch.nn.Module:
    if kind == "heads":
        return models.Gpt(num_heads=1)
    if kind == "short":
        return models.Gpt(num_blocks=2)
    if kind == "lacks":
        for module in (torch.distributed.pipelining.schedules, torch.distributed.pipelining):
            vars(module).pop("ScheduleDualPipeV", None)
        return models.Gpt()
    if kind == "plain":
        return torch.nn.Sequential(torch.nn.Linear(8, 4), torch.nn.ReLU(), torch.nn.Linear(4, 2))
    if kind == "norm":
        return torch.nn.Sequential(torch.nn.Linear(8, 4), torch.nn.BatchNorm1d(4))
    if kind == "meta":
        with torch.device("meta"):
            model = models.Gpt()
            model.h[0].scale = torch.nn.Parameter(torch.ones(1))
        return model
    model = models.make(
        "gpt" if kind in ("tied", "dropout", "odd", "views", "loop", "apart", "LBFGS", "Adafactor") else kind
    )
    if kind == "tied":
        model.lm_head.weight = model.wte.weight
    if kind == "dropout":
        model.h[0].mlp.dropout = torch.nn.Dropout(0.1)
    return model


def refused(kind: str, strategy: Strategy, wishes: dict[str, Any]) -> tuple[str, str]:
    """Return what an error says, and its way out."""
    from echelon.train.strategies.strategy import StrategyError
    from echelon.train.strategies.versions import VersionError

    inputs, targets = models.batches("gpt", num_rows=3 if kind == "odd" else 8)[0]
    if kind == "odd" and strategy.context > 1:
        inputs, targets = inputs[:, :7], targets[:, :7]
    model = odd_model(kind)
    if strategy.pipeline > 1:
        wishes = {"sample": inputs, **wishes}
    try:
        trained = start.start().parallelize(model, strategy, loss=models.loss_of, **wishes)
        trained.optimize(getattr(torch.optim, kind, torch.optim.SGD), lr=0.1)
        if kind == "apart" and start.start().world.rank == 1:
            dim = int(strategy.tensor > 1)  # the rows are in another order, or what is in each of them
            inputs, targets = inputs.flip(dim), targets.flip(dim)
        if kind == "views":
            inputs, targets = next(iter(start.start().loader(loader())))
        if kind == "loop":
            trained.model(next(iter(start.start().loader(loader())))[0])
        trained.step(inputs, targets)
    except VersionError:
        raise
    except StrategyError as error:
        return error.message, error.hint
    return "nothing", ""
