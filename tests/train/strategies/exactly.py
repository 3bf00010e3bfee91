"""What ranks do to show that a training has the same bits: dropout, 16 bits, clipping, and a digest at the end."""

import hashlib
from typing import Any

import torch
import torch.distributed as dist
from tests.train.strategies import training
from torch import nn
from torch.nn import functional

from echelon.train import start
from echelon.train.exact import tree
from echelon.train.strategies.strategy import Strategy, StrategyError
from echelon.train.strategies.versions import VersionError

NUM_SHARDS, NUM_ROWS, WIDTH, NUM_CLASSES = 8, 16, 16, 5
FEWEST_BLOCKS, MOST_BLOCKS = 2, 8


class Block(nn.Module):
    def __init__(self, chance: float) -> None:
        super().__init__()
        self.norm, self.linear, self.dropout = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WIDTH), nn.Dropout(chance)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.dropout(functional.gelu(self.linear(self.norm(x))))


class Counting(nn.Module):
    """Remembers how often it was called."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("calls", torch.zeros(1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return x


class Model(nn.Module):
    """Drops out before, in, between and after its blocks."""

    def __init__(self, chance: float = 0.1, depth: int = MOST_BLOCKS) -> None:
        super().__init__()
        self.stem, self.head = nn.Linear(12, WIDTH), nn.Linear(WIDTH, NUM_CLASSES)
        self.blocks = nn.ModuleList(Block(chance) for _ in range(depth))
        self.dropout = nn.Dropout(chance)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.dropout(self.stem(x))
        for block in self.blocks:
            x = self.dropout(block(x))
        return self.head(x)


def begun(strategy: Strategy, path: str = "", *, chance: float = 0.1, depth: int = MOST_BLOCKS) -> Any:
    torch.manual_seed(4)
    run = start.start(exact=NUM_SHARDS)
    model = Model(chance, depth)
    sample = torch.zeros(NUM_ROWS, 12)
    content = torch.load(path, weights_only=True) if path else None
    wishes = {"state": content["model"]} if content else {}
    trained = run.parallelize(model, strategy, loss=functional.cross_entropy, sample=sample, **wishes)
    trained.optimize(torch.optim.AdamW, lr=1e-2)
    if content:
        trained.load_optimizer(content["optimizer"])
        torch.set_rng_state(content["random"])
    return trained


def batch() -> tuple[torch.Tensor, torch.Tensor]:
    inputs = torch.randn(NUM_ROWS, 12)
    return inputs, inputs[:, :NUM_CLASSES].argmax(1)


def train(
    strategy: Strategy, first: int, last: int, load: str = "", save: str = "", depth: int = MOST_BLOCKS
) -> dict[str, Any]:
    """Return the digest of weights, optimizer and random state on the main rank, and losses and norms on all."""
    trained = begun(strategy, load, depth=depth)
    said = []
    for _ in range(first, last):
        step = trained.step(*batch(), clip=0.5)
        said.append((step.loss.item().hex(), step.gradient_norm.item().hex()))
    random = torch.get_rng_state()
    evaluated = trained.evaluate(*batch()).item().hex()
    model, optimizer = trained.state(), trained.optimizer_state()
    if save and model:
        torch.save({"model": model, "optimizer": optimizer, "random": random}, save)
    return {"said": said, "evaluated": evaluated, "digest": digest(model, optimizer, random) if model else ""}


def by_optimizer(names: list[str], strategy: Strategy) -> dict[str, str]:
    """Return the digest after a few steps with each optimizer; on other ranks than the main one an empty text."""
    found = {}
    for name in names:
        trained = begun(strategy)
        trained.optimize(getattr(torch.optim, name), lr=1e-2)
        for _ in range(6):
            trained.step(*batch(), clip=0.5)
        model, optimizer = trained.state(), trained.optimizer_state()
        found[name] = digest(model, optimizer, torch.get_rng_state()) if model else ""
    return found


def digest(model: Any, optimizer: Any, random: torch.Tensor) -> str:
    found = hashlib.sha256(random.numpy().tobytes())
    for name, tensor in model.items():
        found.update(name.encode() + tensor.numpy().tobytes())
    for number, values in optimizer["state"].items():
        for key, value in sorted(values.items()):
            found.update(f"{number} {key}".encode() + torch.as_tensor(value).numpy().tobytes())
    return found.hexdigest()


def sums(small_bytes: int) -> list[str]:
    """Return the bits of sums over all ranks; in some places each rank has what is no number, with bits of its own."""
    tree.SMALL_BYTES = small_bytes
    run = start.start(exact=NUM_SHARDS)
    found = []
    for size in (1, 3, 1000):
        numbers = torch.randn(size, generator=torch.Generator().manual_seed(run.world.rank))
        numbers *= 10.0 ** (5 * (run.world.rank % 3))
        if size == 1000:
            numbers[::7] = torch.tensor(0x7FC00000 + run.world.rank, dtype=torch.int32).view(torch.float32)
        tree.add_across(numbers, run.world.processes)
        found.append(numbers.numpy().tobytes().hex())
    return found


def sum_beside_own_message() -> tuple[list[float], list[float]]:
    """Wait for a message that the other rank sends after a sum; return what came, and the sum."""
    run = start.start(exact=NUM_SHARDS)
    rank, other = dist.get_rank(), 1 - dist.get_rank()
    theirs, numbers = torch.empty(3), torch.full((3,), 5.0)
    coming: Any = dist.irecv(theirs, other)
    tree.add_across(numbers, run.world.processes)
    dist.send(torch.full((3,), float(rank)), other)
    coming.wait()
    return theirs.tolist(), numbers.tolist()


def by_hand() -> list[float]:
    """Train without any dropout as one does on one device; nothing of echelon."""
    torch.manual_seed(4)
    model = Model(0.0)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    losses = []
    for _ in range(3):
        inputs, targets = batch()
        optimizer.zero_grad()
        loss = functional.cross_entropy(model(inputs), targets)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
        losses.append(loss.item())
    return losses


def without_dropout(strategy: Strategy) -> list[float]:
    trained = begun(strategy, chance=0.0)
    return [trained.step(*batch(), clip=0.5).loss.item() for _ in range(3)]


def own_loop() -> tuple[list[str], str, float]:
    """Train in a loop of one's own; return its losses, a digest of weights and random state, and a mean of ranks."""
    torch.manual_seed(4)
    run = start.start(exact=NUM_SHARDS)
    loader = run.loader(training.loader())
    model = training.models.make("gpt")
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    run.model(model, optimizer)
    losses = []
    for inputs, targets in loader:
        optimizer.zero_grad()
        loss = training.models.loss_of(model(inputs), targets)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
        losses.append(loss.item().hex())
    first_shard = float(run.world.rank)
    shards = digest(model.state_dict(), optimizer.state_dict(), torch.get_rng_state())
    return losses, shards, run.mean(first_shard).item()


def refused(strategy: Strategy, what: str) -> tuple[str, str]:
    """Return what an error says, and its way out."""
    run = start.start(exact=NUM_SHARDS)
    model: nn.Module = Model()
    if what == "buffer":
        model.head = nn.Sequential(Counting(), model.head)  # type: ignore[arg-type]
    try:
        sample = torch.zeros(NUM_ROWS, 12)
        trained = run.parallelize(model, strategy, loss=functional.cross_entropy, sample=sample)
        trained.optimize(torch.optim.AdamW, lr=1e-2)
        if what == "optimizer":
            trained.optimize(type("Mine", (torch.optim.AdamW,), {}), lr=1e-2)
        elif what == "fused":
            trained.optimize(torch.optim.SGD, lr=1e-2, fused=True)
        elif what == "fused group":
            trained.optimize(torch.optim.SGD, groups=lambda name, _: {"fused": "head" in name}, lr=1e-2)
        elif what == "fused state":
            by_hand = torch.optim.AdamW(Model().parameters(), lr=1e-2, fused=True)
            trained.load_optimizer(by_hand.state_dict())
        elif what == "loop":
            trained.model(batch()[0])
        elif what == "loader":
            trained.loader(training.loader())
        else:
            inputs, targets = batch()
            num_rows = 4 if what == "rows" else NUM_ROWS
            trained.step(inputs[:num_rows], targets[:num_rows])
    except VersionError:
        raise
    except StrategyError as error:
        return error.message, error.hint
    return "nothing", ""
