"""A training whose collate function joins samples of many sizes; the loop uses the numbers of rows and samples."""

from typing import Any

import torch
from torch import nn


def collate(samples: Any) -> Any:
    """Join sets of atoms: the number of the set of each atom, where each set begins, and bonds between its atoms."""
    sizes = [len(x) for x, _ in samples]
    begins = torch.tensor([0, *sizes[:-1]]).cumsum(0)
    return {
        "kinds": torch.cat([x[:, 0] > 0 for x, _ in samples]).long(),
        "x": torch.cat([x for x, _ in samples]),
        "owner": torch.cat([torch.full((size,), at) for at, size in enumerate(sizes)]),
        "begins": begins,
        "bonds": torch.cat([torch.stack([torch.arange(n), torch.arange(n).flip(0)], 1) + b
                            for n, b in zip(sizes, begins, strict=True)]),
        "edges": torch.zeros(2, sum(sizes), dtype=torch.long),
        "ends": torch.tensor([0, *sizes]).cumsum(0),
        "y": torch.stack([y for _, y in samples]),
    }  # fmt: skip


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body, self.head, self.bag = nn.Linear(5, 8), nn.Linear(8, 1), nn.EmbeddingBag(2, 1)

    def forward(self, x: Any, kinds: Any, begins: Any) -> Any:
        """Return a number for each atom, and one for each sample; its bags begin where the samples of its rank do."""
        return self.head(torch.tanh(self.body(x))).squeeze(1), self.bag(kinds, begins).squeeze(1)


class Pool(nn.Module):
    """A model that returns a row for each sample, though no argument has one."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(5, 3)

    def forward(self, x: Any, owner: Any) -> Any:
        pooled = torch.zeros(int(owner.max()) + 1, 3).index_add(0, owner, torch.tanh(self.body(x)))
        return pooled.logsumexp(1)


def train(num_samples: int = 8) -> list[float]:
    """Return numbers of a few steps: losses, and what the loop sees of the numbers."""
    torch.manual_seed(0)
    samples = [(torch.randn(1 + at % 4, 5), torch.randn(())) for at in range(3 * num_samples)]
    net, pool = Net(), Pool()
    optimizer = torch.optim.SGD([*net.parameters(), *pool.parameters()], lr=0.1)
    seen = []
    for batch in torch.utils.data.DataLoader(samples, batch_size=num_samples, collate_fn=collate):
        moved = {name: tensor.to("cpu").clone() for name, tensor in batch.items()}
        atoms, offset = net(moved["x"], moved["kinds"], moved["begins"])
        sums = offset + torch.zeros(len(moved["y"])).index_add(0, moved["owner"].long(), atoms)
        pairs = atoms[moved["bonds"][:, 0]] * atoms[moved["bonds"][:, 1]]
        of_samples = pool(moved["x"], moved["owner"])
        assert of_samples.shape == (num_samples,)
        loss = (sums + of_samples - moved["y"]).pow(2).mean() + 0.1 * pairs.mean()
        seen += [loss.item(), float(moved["begins"].tolist()[-1]), float((moved["owner"] * 2).sum())]
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return seen


def outcome() -> list[float]:
    """Train on this rank, without any check."""
    _install()
    return train()


def refusal(what: str) -> str:
    """Use a tensor of the batch in the loop; return what is said."""
    from echelon.train.scaling_error import ScalingError

    _install()
    net = Net()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)  # what is loaded now is for a training
    samples = [(torch.randn(1 + at % 4, 5), torch.randn(())) for at in range(16)]
    (batch, *_) = torch.utils.data.DataLoader(samples, batch_size=8, collate_fn=collate)
    try:
        return f"{len(batch[what].to('cpu'))} {batch[what].sum()} {optimizer}"
    except ScalingError as error:
        error.withdraw()
        return str(error)


def _install() -> None:
    import torch.distributed as dist

    from echelon.orders.scale import ScaleOptions
    from echelon.train import hooks
    from echelon.train.run import Run
    from echelon.train.wire.world import World

    world = World(dist.get_rank(), dist.get_world_size(), torch.device("cpu"))
    hooks.install(Run(world, is_hooked=True, options=ScaleOptions(checks_first_step=False)))
