"""A training under a strategy whose bits are those of one device: `echelon.start(exact=V)`."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from ...pytorch import distributed
from . import batches, stages
from .axes import Axes
from .parallel import Parallel
from .strategy import StrategyError
from .virtual_shards import VirtualShards


class ExactParallel(Parallel):
    """A model that is trained under a strategy in a run with `exact`; `run.parallelize()` returns it."""

    def __init__(
        self, run: Any, parts: dict[int, nn.Module], axes: Axes, *, blocks: Sequence[str], **settings: Any
    ) -> None:
        self._virtual = VirtualShards(parts, axes, block_names=blocks, trained=settings["trained"])
        super().__init__(run, parts, axes, **settings)
        for part in self.parts:
            part.register_forward_pre_hook(self._refuse_own_loop, prepend=True)

    def _refuse_own_loop(self, *_: object) -> None:
        """Refuse a model that is called in a loop of the script's own: its gradients would not be added up."""
        if torch.is_grad_enabled() and not self._virtual.is_computing:
            raise StrategyError(
                f"exact is {self.axes.num_shards}: echelon computes a batch shard by shard, but the script called the "
                "model with the whole batch",
                hint="trained.step(inputs, targets)",
            )

    def loader(self, loader: object) -> Any:  # noqa: ARG002
        """Refuse to load rows alone: augmentation and padding would depend on the loaded rows."""
        raise StrategyError(
            f"exact is {self.axes.num_shards}: rows that a rank loads alone may get other augmentation and padding",
            hint="pass batches of the script's own loader to trained.step(inputs, targets)",
        )

    def _make_schedule(self, parts: dict[int, nn.Module]) -> object:
        def prepare(stage: Any) -> None:
            stage.begin = self._virtual.begin
            stage.take = lambda place: self._virtual.take(stage.stage_index, place)

        changes = (_OneByOne, distributed.StageRepairs)
        return stages.make_schedule(parts, self.axes, self._loss_of_part, changes=changes, prepare=prepare)

    @property
    def _factor(self) -> float:
        return self.loss_scale.value  # gradients are added up: the parts of a mean sum up to the mean

    @contextmanager
    def _plainly(self) -> Iterator[None]:
        with self._calls.idle(), self._virtual.computing(self.generators, self._parameters):
            yield

    def _compute(self, inputs: object, targets: object, *, rows: bool) -> torch.Tensor:
        self._virtual.set_aside()
        return super()._compute(inputs, targets, rows=rows)

    @contextmanager
    def _exchanging(self, place: int) -> Iterator[None]:
        self._virtual.begin(place)
        yield
        self._virtual.take(self._stages[0], place)

    def _sum_up(self, losses: list[torch.Tensor]) -> torch.Tensor:
        return self._virtual.sum_up(losses)

    @torch.no_grad()
    def evaluate(self, inputs: object, targets: object, *, rows: bool = False) -> torch.Tensor:
        inputs, targets = self._own(inputs, targets, rows=rows)
        parts, wanted = (batches.in_parts(one, self.strategy.accumulation, is_even=False) for one in (inputs, targets))
        compute = self._forward if self._schedule is None else self._evaluate_in_stages
        losses = []
        with self._plainly():
            for place, (part, target) in enumerate(zip(parts, wanted, strict=False)):
                self._virtual.begin(place)
                losses.append(compute(part, target))
        return self._begin_mean(self._virtual.sum_of_losses(losses))()

    def _begin_mean(self, total: torch.Tensor) -> Callable[[], torch.Tensor]:
        """Give earlier stages the loss of the last stage, by a sum in which their own loss is 0."""
        if self.axes.sizes["pipeline"] == 1:
            loss = total.clone()  # as a view it would keep the buffer of all gradients
            return lambda: loss
        wait = self.axes.begin_sum(total, self.axes.group("pipeline"))
        return lambda: wait().to(total.dtype)

    def _norm(self) -> torch.Tensor:
        return self._virtual.norm(self._parameters)


class _OneByOne:
    """Makes a PyTorch stage give out the gradients of each micro-batch separately."""

    begin: Callable[[int], None]
    take: Callable[[int], None]

    def forward_one_chunk(self, fwd_chunk_id: int, *args: object, **kwargs: object) -> object:
        self.begin(fwd_chunk_id)
        return super().forward_one_chunk(fwd_chunk_id, *args, **kwargs)  # type: ignore[misc]

    def backward_one_chunk(
        self,
        bwd_chunk_id: int,
        loss: object = None,
        full_backward: bool = True,
        last_backward: bool = False,  # noqa: ARG002  (none is the last for PyTorch, which would exchange gradients then)
    ) -> None:
        super().backward_one_chunk(bwd_chunk_id, loss=loss, full_backward=full_backward)  # type: ignore[misc]
        if full_backward:
            self.take(bwd_chunk_id)

    def backward_weight_one_chunk(self, bwd_chunk_id: int, last_backward: bool = False) -> None:  # noqa: ARG002
        super().backward_weight_one_chunk(bwd_chunk_id)  # type: ignore[misc]
        self.take(bwd_chunk_id)

    def perform_reduce_grad(self, grad_scale_factor: int) -> None:
        """Exchange nothing."""
