"""The mesh of all ranks, and this rank's place on every axis of a strategy."""

from collections.abc import Callable
from typing import Any, TypeVar

import torch
import torch.distributed as dist

from ..batches import rows_of
from ..measuring import measures
from ..wire import device as devices
from ..wire import gather, groups, messages
from ..wire.world import World
from .strategy import SHAPED_LIKE_V, Strategy, StrategyError

Value = TypeVar("Value")
ORDER = ("pipeline", "replicate", "shard", "context", "tensor")
"""From the outermost to the innermost: neighbours, with the fastest links, cut the same layer."""


class Axes:
    def __init__(self, strategy: Strategy, world: World, num_shards: int = 0) -> None:
        self.strategy = strategy
        self.world = world
        self.num_shards = num_shards
        """The number of virtual shards of a batch in an exact run; 0 in other runs."""
        self.sizes = {name: int(getattr(strategy, name)) for name in ORDER}
        self._places = self._find_places()
        measures.share(world.size // strategy.num_data)
        is_spread = strategy.is_fully_sharded  # also over one rank
        self._names = [name for name in ORDER if self.sizes[name] > 1 or (name == "shard" and is_spread)]
        self._mesh: Any = self._make_mesh() if world.size > 1 or is_spread else None

    def _make_mesh(self) -> object:
        from torch.distributed.device_mesh import init_device_mesh

        mesh = init_device_mesh(
            self.world.device.type,
            tuple(self.sizes[name] for name in self._names),
            mesh_dim_names=tuple(self._names),
        )
        groups.yield_cores()
        for name in self._names:  # PyTorch's pipelines and its ZeRO send objects there
            groups.prove(mesh.get_group(name))
        return mesh

    def _find_places(self) -> dict[str, int]:
        rank, places = self.world.rank, {}
        for name in reversed(ORDER):
            rank, places[name] = divmod(rank, self.sizes[name])
        return places

    def place(self, name: str) -> int:
        return self._places[name]

    @property
    def data_place(self) -> int:
        return self.place("replicate") * self.sizes["shard"] + self.place("shard")

    def rows_of(self, size: int) -> tuple[int, ...]:
        """Return the number of rows in each data part of a batch; a part consists of whole virtual shards."""
        number = self.strategy.num_data
        num_parts = self.num_shards or number
        if size < num_parts:
            raise StrategyError(
                f"the batch has {size} rows, but {'exact' if self.num_shards else 'replicate × shard'} is {num_parts}",
                hint="use a larger batch (drop_last=True drops a small last batch), or fewer %s"
                % ("virtual shards" if self.num_shards else "ranks on these axes"),
            )
        rows = rows_of(size, num_parts)
        shards_per_part = num_parts // number
        return tuple(sum(rows[first : first + shards_per_part]) for first in range(0, num_parts, shards_per_part))

    @property
    def counts(self) -> bool:
        """Whether this rank's loss counts in a sum over ranks, and does not repeat another rank's loss."""
        is_v = self.strategy.schedule in SHAPED_LIKE_V  # it ends where it begins
        last = 0 if is_v else self.sizes["pipeline"] - 1
        return self.place("tensor") == 0 and self.place("pipeline") == last

    def mesh(self, name: str) -> Any:
        return self._mesh[name]

    def mesh_of_weights(self) -> Any:
        """Return the mesh over which fully_shard shards weights, and replicates them if the strategy says so."""
        return self._mesh[("replicate", "shard")] if self.sizes["replicate"] > 1 else self._mesh["shard"]

    def group(self, name: str) -> Any:
        return self._mesh.get_group(name) if self._mesh is not None else None

    def of_all_stages(self, mine: Value) -> list[Value]:
        """Return the values of the stages of a pipeline; without one, this rank's own."""
        return [mine] if self.sizes["pipeline"] == 1 else messages.gather(mine)

    def rank_at_stage(self, place: int) -> int:
        """Return the first rank that stands at a place of the pipeline."""
        return place * (self.world.size // self.sizes["pipeline"])

    def sum(self, value: torch.Tensor) -> torch.Tensor:
        return self.begin_sum(value)()

    def begin_sum(self, value: torch.Tensor, group: object = None) -> Callable[[], torch.Tensor]:
        """Begin a sum over all ranks, or the ranks of a group; return a function that waits for the sum."""
        own = value.detach().double()
        if self.world.size == 1 or not devices.is_accelerator(own.device):
            total = gather.total(own, group) if self.world.size > 1 else own
            return lambda: total
        work = dist.all_reduce(own, group=group, async_op=True)

        def wait() -> torch.Tensor:
            work.wait()
            return own

        return wait

    def broadcast_first(self, tensors: list[torch.Tensor]) -> None:
        if self.world.size > 1:
            for tensor in tensors:
                dist.broadcast(tensor.detach(), 0)
