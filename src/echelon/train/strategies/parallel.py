"""A model to which a strategy was applied: it steps, clips, saves and loads as on one device."""

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any, NamedTuple

import torch
from torch import nn

from ...checkpoint import safetensors
from ..check import signature
from ..function_types import StateDict
from ..recording.record import in_other_order
from ..rng.generators import Generators
from ..training import Training
from ..wire.gather import whole
from . import attention, batches, blocks, norms, precision, recorded, spreading, stages, states, versions
from .axes import Axes
from .optimizers import Chooser, Optimizing, check_is_stepped_once
from .states import State, read
from .strategy import StrategyError

NO_LIMIT = 0.0


class Step(NamedTuple):
    """The result of one step, equal on all ranks."""

    loss: torch.Tensor
    """The mean over the whole batch."""
    gradient_norm: torch.Tensor
    """The 2-norm of the gradient of all weights, before it was clipped."""
    was_lost: bool = False
    """Whether fp16 overflowed, so that nothing was changed."""


class Parallel:
    """A model that is trained under a strategy; `run.parallelize()` returns it.

    Every rank calls the same methods in the same order. `step`, `backward` and `evaluate` take the whole batch: tensors
    of shape [batch, …], the same on all ranks, or with `rows=True` the rows of this rank alone. `state` and
    `optimizer_state` give what one device has, with the names of the original model, in the memory of the host.

    >>> import echelon, torch
    >>> run = echelon.start()
    >>> trained = run.parallelize(torch.nn.Linear(3, 1), echelon.Strategy(), loss=torch.nn.functional.mse_loss)
    >>> optimizer = trained.optimize(torch.optim.SGD, lr=0.1)
    >>> loss, norm, was_lost = trained.step(torch.ones(8, 3), torch.zeros(8, 1), clip=1.0)
    >>> loss.shape, bool(norm > 0), was_lost
    (torch.Size([]), True, False)
    >>> [tuple(weight.shape) for weight in trained.state().values()]
    [(1, 3), (1,)]
    """

    def __init__(
        self,
        run: Training,
        parts: dict[int, nn.Module],
        axes: Axes,
        *,
        order: Sequence[str],
        trained: Sequence[str],
        loss: Callable[..., torch.Tensor] | None,
        count: Callable[[Any], int] | None,
    ) -> None:
        self.axes = axes
        self.strategy = axes.strategy
        self.parts = list(parts.values())
        """The modules of this rank: its stages of a pipeline, or the one model."""
        self._order, self._trained = list(order), list(trained)
        self._loss, self._count = loss, count or batches.count_of
        self.generators = Generators(axes.data_place * axes.sizes["context"] + axes.place("context"), None)
        self.loss_scale = precision.LossScale(is_on=self.strategy.precision == "fp16")
        self._optimizing: Optimizing | None = None
        self._calls = run.calls
        self._record, self._is_reordered = run.record, run.is_reordered
        self._total = 1.0
        self._num_begun = 0
        self._stages = sorted(parts)
        self._parameters = self._named_parameters()
        self._schedule = self._make_schedule(parts) if self.strategy.pipeline > 1 else None
        if self.strategy.num_data < self.strategy.num_ranks:
            for part in self.parts:
                part.register_forward_pre_hook(self._refuse_shared_rows)
        if run.world.size > 1:
            run.say(f"strategy: {self.strategy}")

    def _make_schedule(self, parts: dict[int, nn.Module]) -> Any:
        return stages.make_schedule(parts, self.axes, self._loss_of_part)

    def _refuse_shared_rows(self, *_: object) -> None:
        """Refuse rows that a run has shared among all ranks, if the strategy needs equal rows on some ranks."""
        if self._calls.is_inside:
            raise StrategyError(
                f"run.loader() gives each of {self.strategy.num_ranks} ranks its own rows, but under "
                f"{self.strategy.as_code()} only {self.strategy.num_data} ranks have different rows",
                hint="call trained.step(inputs, targets) with batches of the script's own loader",
            )

    # The model and its optimizer

    @property
    def model(self) -> nn.Module:
        """The module to call; a pipeline has none, because no rank has the whole model."""
        if self._schedule is not None:
            raise StrategyError(
                "no rank can call a model that a pipeline has split", hint="trained.step(inputs, targets)"
            )
        return self.parts[0]

    def parameters(self) -> dict[str, nn.Parameter]:
        """Return this rank's weights by the names that they have in the model as it was written."""
        return dict(self._parameters)

    def _named_parameters(self) -> dict[str, nn.Parameter]:
        parameters: dict[str, nn.Parameter] = {}
        for part in self.parts:
            parameters.update({blocks.plain_name(name): one for name, one in part.named_parameters()})
        known = {name: place for place, name in enumerate(self._order)}
        return dict(sorted(parameters.items(), key=lambda item: known.get(item[0], len(known))))

    def optimize(self, kind: type, *, groups: Chooser | None = None, **settings: object) -> torch.optim.Optimizer:
        """Make the optimizer: a class of torch.optim and its settings; groups(name, weight) gives a weight's own."""
        self._optimizing = Optimizing(kind, self._parameters, self.axes, groups=groups, settings=settings)
        if self._record is not None:
            recorded.begin(self._record, self._parameters, self._optimizing, self.axes, self._trained)
        return self.optimizer

    @property
    def optimizer(self) -> torch.optim.Optimizer:
        """The optimizer that optimize() made; a scheduler of learning rates takes it."""
        return self._optimized().optimizer  # type: ignore[no-any-return]

    def _optimized(self) -> Optimizing:
        if self._optimizing is None:
            raise StrategyError("there is no optimizer yet", hint="trained.optimize(torch.optim.AdamW, lr=1e-3)")
        return self._optimizing

    def loader(self, loader: Any) -> batches.OwnRows:
        """Return a loader that gives this rank's rows alone, for step(…, rows=True)."""
        return batches.OwnRows(loader, self.axes)

    # A step

    def step(self, inputs: object, targets: object, *, clip: float = NO_LIMIT, rows: bool = False) -> Step:
        """Train on a batch: forward, backward, clip, step. Every rank gives the whole batch; with rows=True its own."""
        check_is_stepped_once(self.optimizer)
        self.optimizer.zero_grad()
        loss = self._begin(inputs, targets, rows=rows)
        norm = self.clip(clip)
        was_lost = self.loss_scale.is_lost(norm)
        if not was_lost:
            self.optimizer.step()
        return Step(loss(), norm, was_lost)

    def backward(self, inputs: object, targets: object, *, rows: bool = False) -> torch.Tensor:
        """Compute the gradient of the loss over the whole batch, and return that loss."""
        return self._begin(inputs, targets, rows=rows)()

    def _begin(self, inputs: object, targets: object, *, rows: bool) -> Callable[[], torch.Tensor]:
        """Compute gradients; return a function that waits for the loss over the whole batch."""
        loss = self._begin_mean(self._compute(inputs, targets, rows=rows))
        return loss if self._record is None else recorded.noted(self._record, loss)

    def _compute(self, inputs: object, targets: object, *, rows: bool) -> torch.Tensor:
        """Compute gradients; return this rank's part of the loss."""
        self._num_begun += 1
        inputs, targets = self._own(inputs, targets, rows=rows)
        with self._plainly():
            losses = self._in_stages(inputs, targets) if self._schedule is not None else self._in_turn(inputs, targets)
            total = self._sum_up(losses)
        norms.finish(self._parameters.values())
        return total

    def _sum_up(self, losses: list[torch.Tensor]) -> torch.Tensor:
        return sum(losses, torch.zeros((), device=self.axes.world.device))

    @torch.no_grad()
    def evaluate(self, inputs: object, targets: object, *, rows: bool = False) -> torch.Tensor:
        """Return the loss over a whole batch."""
        inputs, targets = self._own(inputs, targets, rows=rows)
        with self._plainly(), self._cut_losses():
            compute = self._forward if self._schedule is None else self._evaluate_in_stages
            total = compute(inputs, targets)
        return self._begin_mean(total)()

    def clip(self, limit: float) -> torch.Tensor:
        """Return the norm of the whole gradient, and scale the gradient down to a limit above 0."""
        weights = list(self._parameters.values())
        norm = self._norm() / self.loss_scale.value
        factor = torch.ones_like(norm) / self.loss_scale.value
        if limit > NO_LIMIT:
            factor = factor * (limit / (norm + norms.EPSILON)).clamp(max=1.0)
        if limit > NO_LIMIT or self.loss_scale.value != 1.0:
            norms.multiply(weights, factor)
        return norm

    def _norm(self) -> torch.Tensor:
        return norms.of_axes(self._parameters.values(), self.axes)

    @contextmanager
    def _plainly(self) -> Iterator[None]:
        """Compute without a run's hooks on calls of modules, and with random numbers of this rank's rows."""
        with self._calls.idle(), self.generators.in_own():
            yield

    def _own(self, inputs: object, targets: object, *, rows: bool) -> Any:
        batches.refuse_views(inputs, targets)
        if self._is_reordered:
            inputs, targets = (batches.each(in_other_order, one) for one in (inputs, targets))
        total = 0.0 if rows else float(self._count(targets))
        if not rows:
            if self._num_begun <= signature.NUM_BATCHES:
                self._refuse_other_batch(inputs, targets)
            inputs, targets = (batches.own_rows(one, self.axes) for one in (inputs, targets))
        if self.strategy.context > 1:
            targets = batches.each(lambda one: attention.cut_plain(one, self.axes), targets)
        if rows:
            repeats = self.axes.place("tensor") or self.axes.place("pipeline")
            own = 0.0 if repeats else float(self._count(targets))
            total = float(self.axes.sum(torch.tensor(own, device=self.axes.world.device)))
        self._total = max(total, 1.0)
        return inputs, targets

    def _refuse_other_batch(self, inputs: object, targets: object) -> None:
        """Refuse a batch that differs between ranks; all ranks raise the error."""
        rank = signature.rank_with_other_batch((inputs, targets), self.axes.world)
        if rank:
            raise StrategyError(
                f"rank {rank} got another batch than rank 0, but the ranks must compute parts of the same batch",
                hint="draw the same batches on every rank, with one seed (torch.manual_seed(0) before the loader); or "
                "let each rank load its rows: for inputs, targets in trained.loader(loader): trained.step(…, "
                "rows=True)",
            )

    def _in_turn(self, inputs: object, targets: object) -> list[torch.Tensor]:
        """Compute the parts one after another, and return their losses; gradients are exchanged in the last."""
        number = self.strategy.accumulation
        parts, wanted_parts = (batches.in_parts(one, number, is_even=False) for one in (inputs, targets))
        losses = []
        for place, (part, wanted) in enumerate(zip(parts, wanted_parts, strict=False)):
            with self._exchanging(place), self._cut_losses():
                loss = self._forward(part, wanted)
                # not Tensor.backward, which a run has hooked for scripts
                torch.autograd.backward(loss * self._factor)
            losses.append(loss.detach())
        return losses

    @property
    def _factor(self) -> float:
        """The factor of a loss before backward: the data axes will take a mean of gradients."""
        return self.strategy.num_data * self.loss_scale.value

    def _exchanging(self, place: int) -> Any:
        """Return the context in which a part is computed; gradients are exchanged in the last part."""
        model, is_last = self.parts[0], place == self.strategy.accumulation - 1
        if isinstance(model, nn.parallel.DistributedDataParallel):
            return nullcontext() if is_last else model.no_sync()
        if self.strategy.accumulation > 1:
            spreading.sync_gradients(self.parts, is_last=is_last)
        return nullcontext()

    def _cut_losses(self) -> Any:
        """Return the context of a loss and its backward; it supports logits that are cut by classes."""
        if not self.strategy.parallel_loss:
            return nullcontext()
        from torch.distributed.tensor.parallel import loss_parallel

        return loss_parallel()

    def _forward(self, inputs: object, targets: object) -> torch.Tensor:
        """Return the loss of some rows, weighed so that the sum over all parts and ranks is the mean over the batch."""
        weight = self._count(targets) / self._total  # counted before the batch moves to the device: no wait
        inputs, targets = self._here(inputs), self._here(targets)
        if self.strategy.context > 1:
            inputs = batches.each(lambda one: attention.cut(one, self.axes), inputs)
        args, named = batches.arguments_of(inputs)
        with precision.autocast(self.axes):
            outputs = self.parts[0](*args, **named)
            return self._loss_of(attention.leave(outputs) if self.strategy.context > 1 else outputs, targets, weight)

    def _here(self, batch: object) -> Any:
        return batches.each(lambda one: one.to(self.axes.world.device), batch)

    def _loss_of(self, outputs: object, targets: object, weight: float) -> torch.Tensor:
        if not weight:  # a mean over no targets would be NaN, but counts as 0
            tensors = [one for one in batches.tensors_of(outputs) if one.is_floating_point()]
            return sum((one * 0).sum() for one in tensors)  # type: ignore[return-value]
        loss = batches.own_loss(outputs) if self._loss is None else self._loss(outputs, targets)
        if self._loss is not None and self._num_begun <= batches.NUM_STEPS and batches.matters(self.strategy):
            batches.check(self._loss, self._count, outputs, targets, loss.detach(), self.strategy)
        whole_loss: torch.Tensor = whole(loss)
        return whole_loss * weight

    def _loss_of_part(self, outputs: object, targets: object) -> torch.Tensor:
        """Return a micro-batch's loss as a schedule runs backward from it."""
        weight = self._count(targets) / self._total
        return self._loss_of(outputs, targets, weight * self._factor)

    def _in_stages(self, inputs: object, targets: object) -> list[torch.Tensor]:
        """Compute micro-batches in the schedule's order; return their losses on the rank of the last stage."""
        number = self.strategy.accumulation
        batches.in_parts(inputs, number, is_even=True)  # refuses rows that do not come out even
        assert self._schedule is not None  # noqa: S101
        losses: list[torch.Tensor] = []
        has_first, has_last = 0 in self._stages, self.strategy.num_stages - 1 in self._stages
        tensors = self._show_stages(inputs)
        wanted: dict[str, object] = {"target": self._here(targets), "losses": losses} if has_last else {}
        wanted.update(versions.no_outputs(self._schedule))
        with precision.autocast(self.axes):
            self._schedule.step(*(tensors if has_first else ()), **stages.as_named(tensors), **wanted)
        return [one.detach() / self._factor for one in losses]

    def _show_stages(self, inputs: Any) -> list[torch.Tensor]:
        """Tell stages the structure of the model's inputs; return the tensors of the inputs."""
        for part in self.parts:
            part.form = inputs
        return batches.tensors_of(self._here(inputs))

    def _evaluate_in_stages(self, inputs: object, targets: object) -> torch.Tensor:
        parts = dict(zip(self._stages, self.parts, strict=False))
        with precision.autocast(self.axes):
            output = stages.forward_only(parts, self.axes, self._show_stages(inputs))
            if output is None:
                return torch.zeros((), device=self.axes.world.device)
            return self._loss_of(output, self._here(targets), self._count(targets) / self._total)

    def _begin_mean(self, total: torch.Tensor) -> Callable[[], torch.Tensor]:
        """Begin to add up all ranks' parts of the loss; the sum overlaps with the optimizer's step."""
        wait = self.axes.begin_sum(total if self.axes.counts else torch.zeros_like(total))
        return lambda: wait().to(total.dtype)

    # Saving and loading

    def state(self) -> dict[str, torch.Tensor]:
        """Return the whole model's state as one device has it, on the main rank; every rank must ask."""
        return states.gather(states.named(self.parts), self.axes, self._order)

    def load(self, state: State) -> None:
        """Load the state of a whole model, from a mapping or a file; every rank reads only its parts."""
        states.fill(states.named(self.parts), read(state), self._order)

    def optimizer_state(self) -> dict[str, object]:
        """Return the optimizer's state as one device has it, on the main rank; every rank must ask."""
        return self._optimized().state(self._trained)

    def load_optimizer(self, state: StateDict) -> None:
        """Load the state of an optimizer of the whole model."""
        self._optimized().load(state, self._trained)

    def save(self, path: str) -> None:
        """Write the whole state, plain: weights as *.safetensors; else weights and optimizer for torch.load().

        Weights come to the main rank a few at a time, and go to the disk, so that it need not hold all of them.
        """
        model, optimizer = path + ".model.part", path + ".optimizer.part"
        states.write(model, states.named(self.parts), self.axes, self._order)
        is_main = self.axes.world.rank == 0
        if path.endswith(".safetensors"):
            if is_main:
                os.replace(model, path)
        else:
            content: dict[str, Any] = {"model": safetensors.read(model)} if is_main else {}
            if self._optimizing is not None:
                content["optimizer"] = self._optimizing.state(self._trained, optimizer)
            if is_main:
                torch.save(content, path + ".part")
                os.replace(path + ".part", path)
                for spool in (model, optimizer):
                    if os.path.exists(spool):
                        os.remove(spool)
        if self.axes.world.size > 1:
            torch.distributed.barrier()

    def picture(self) -> str:
        """Return a table of the parts of weights that each rank holds; every rank must ask."""
        return recorded.table(states.named(self.parts), self.axes, self._order)
