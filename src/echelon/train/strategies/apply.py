"""Apply a strategy to an unchanged model, in one order: tensor → checkpointing → compile → shard or replicate."""

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import nn

from ...pytorch import internals
from ..function_types import Kwargs
from ..training import Training
from . import attention, blocks, meta, precision, spreading, stage_modules, stages, states, tensor_plans, versions
from . import virtual_shards as exact
from .axes import Axes
from .batches import each, in_parts, own_rows
from .states import State, read
from .strategy import Strategy, StrategyError

if TYPE_CHECKING:
    from .parallel import Parallel


class ModelHints(NamedTuple):
    """Facts about a model that a strategy may need."""

    blocks: Sequence[str] = ()
    plan: Mapping[str, object] = {}
    sample: Any = None
    state: State | None = None
    initialize: Callable[[nn.Module], Any] | None = None


def parallelize(
    run: Training,
    model: nn.Module,
    strategy: Strategy,
    hints: ModelHints,
    *,
    loss: Callable[..., torch.Tensor] | None,
    count: Callable[[Any], int] | None,
) -> "Parallel":
    from .exact_parallel import ExactParallel
    from .parallel import Parallel

    ranks = run.world.processes
    if run.record is not None and ranks.size == 1:
        strategy = strategy.alone  # the reference of `echelon prove`
    strategy.check_ranks(ranks.size)
    num_shards = run.world.size if run.world.is_exact else 0
    if num_shards:
        strategy = exact.fit(strategy, num_shards)
    precision.check(strategy, run.world.device)
    versions.check(strategy, run.world.device)
    _refuse_batch_norm(model, strategy)
    run.prepare()
    axes = Axes(strategy, ranks, num_shards)
    order = [name for name, one in model.state_dict(keep_vars=True).items() if isinstance(one, torch.Tensor)]
    trained = [name for name, one in model.named_parameters() if one.requires_grad]
    names = list(blocks.find(model, hints.blocks))
    parts = _apply(model, axes, hints)
    settings: Kwargs = {"order": order, "trained": trained, "loss": loss, "count": count}
    if num_shards:
        return ExactParallel(run, parts, axes, blocks=names, **settings)
    return Parallel(run, parts, axes, **settings)


def _apply(model: nn.Module, axes: Axes, hints: ModelHints) -> dict[int, nn.Module]:
    """Cut, checkpoint, compile and shard; return this rank's stages by number: without a pipeline one stage."""
    strategy, device = axes.strategy, axes.world.device
    skeleton = meta.skeleton_of(model) if meta.is_meta(model) else None
    if skeleton is None:
        model.to(device)
        axes.broadcast_first([*model.parameters(), *model.buffers()])
    model_blocks = _blocks(model, strategy, hints)
    parts = {0: model}
    if strategy.pipeline > 1:
        begin = stages.begins(model, model_blocks, strategy)
        parts = stage_modules.split(model, model_blocks, begin, _sample(hints, axes), axes)
    done: dict[int, nn.Module] = {}
    for number, part in parts.items():
        own = stage_modules.own_blocks(part, model_blocks)
        if strategy.tensor > 1:
            tensor_plans.apply(part, own, axes, hints.plan)
        if strategy.context > 1:
            attention.apply(part, axes)
        if strategy.checkpointing != "none":
            blocks.apply(part, own, strategy.checkpointing)
        if strategy.compile:
            for block in own.values() or [part]:
                block.compile()
        if skeleton is not None and not strategy.is_fully_sharded:
            meta.materialize([part], device)
        done[number] = spreading.apply(part, own, axes)
    stage_modules.watch(parts.values())
    _fill(list(done.values()), skeleton, axes, hints)
    return done


def _blocks(model: nn.Module, strategy: Strategy, hints: ModelHints) -> dict[str, nn.Module]:
    """Return the blocks of a model; refuse a model without blocks if the strategy needs blocks."""
    reasons = {
        "checkpointing": strategy.checkpointing != "none",
        'shard with reshard="always"': strategy.shard > 1 and strategy.reshard == "always",
        "compile": strategy.compile,
        "pipeline": strategy.pipeline > 1,
        "tensor": strategy.tensor > 1 and not (hints.plan or getattr(model, "_tp_plan", None)),
    }
    for wish, needs in reasons.items():
        if needs:
            return blocks.need(model, hints.blocks, wish)
    return blocks.find(model, hints.blocks)


def _sample(hints: ModelHints, axes: Axes) -> object:
    if hints.sample is None:
        raise StrategyError(
            "echelon cuts a pipeline along the computation of the model, and needs a batch to trace the computation",
            hint="run.parallelize(model, strategy, sample=inputs)",
        )
    rows = own_rows(hints.sample, axes)
    part = in_parts(rows, axes.strategy.accumulation, is_even=True)[0]
    return each(lambda one: one.to(axes.world.device), part)


def _fill(parts: list[nn.Module], skeleton: nn.Module | None, axes: Axes, hints: ModelHints) -> None:
    """Initialize weights that were made on the meta device, and load the given state."""
    state = read(hints.state) if hints.state is not None else {}
    if skeleton is not None:
        device = axes.world.device
        if axes.strategy.is_fully_sharded:
            meta.materialize(parts, torch.device("cpu") if axes.strategy.offload else device)
        meta.draw(parts, skeleton, device, hints.initialize, given=state)
    if state:
        states.fill(states.named(parts), state, list(state))


def _refuse_batch_norm(model: nn.Module, strategy: Strategy) -> None:
    if strategy.num_data * strategy.accumulation == 1:
        return
    for name, module in model.named_modules():
        if isinstance(module, internals.BatchNormLayer) and module.training:
            raise StrategyError(
                f"{name} is a BatchNorm, which needs the statistics of the whole batch, but each rank computes only "
                "its rows",
                hint="use GroupNorm; or run.model() and echelon run --sync-bn",
            )
