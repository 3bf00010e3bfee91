"""Where the stages of a pipeline begin, which ranks have them, and PyTorch's schedules of micro-batches over them."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from ...pytorch import distributed
from ..wire import messages
from .axes import Axes
from .strategy import SCHEDULES, SHAPED_LIKE_V, SINGLE, Strategy, StrategyError
from .versions import unscaled


def places(strategy: Strategy, rank: int) -> list[int]:
    last = strategy.num_stages - 1
    if strategy.schedule in SHAPED_LIKE_V:
        return [rank, last - rank]
    return list(range(rank, strategy.num_stages, strategy.pipeline))


def begins(model: nn.Module, model_blocks: Mapping[str, nn.Module], strategy: Strategy) -> list[str]:
    """Return the first module of each stage but the first stage: as given, or balanced by the number of weights."""
    names = list(model_blocks)
    if len(names) < strategy.num_stages:
        raise StrategyError(
            f"the pipeline has {strategy.num_stages} stages, but {type(model).__name__} has only {len(names)} blocks",
            hint=f"use at most {len(names)} stages: "
            f"pipeline={max(1, len(names) * strategy.pipeline // strategy.num_stages)}",
        )
    return list(strategy.split) or _balanced(model, names, strategy.num_stages)


def _balanced(model: nn.Module, names: Sequence[str], num_stages: int) -> list[str]:
    """Return where stages begin so that the largest has as few weights as can be."""
    sizes = _sizes(model, names)
    count = len(names)
    best: dict[object, object] = {(count, 0): (0, [])}

    def cut(first: int, stages: int) -> Any:
        if (first, stages) not in best:
            options = []
            for end in range(first + 1, count - stages + 2) if stages > 1 else [count]:
                rest = cut(end, stages - 1)
                options.append((max(sum(sizes[first:end]), rest[0]), [first, *rest[1]]))
            best[first, stages] = min(options)
        return best[first, stages]

    return [names[place] for place in cut(0, num_stages)[1][1:]]


def _sizes(model: nn.Module, names: Sequence[str]) -> list[int]:
    """Return the number of weights of each block; weights outside of blocks count to the block before, or the first."""
    owner: dict[str, int] = {name: place for place, name in enumerate(names)}
    sizes, place = [0] * len(names), 0
    for name, parameter in model.named_parameters():
        inside = next((known for known in owner if name.startswith(known + ".")), None)
        place = owner[inside] if inside is not None else place
        sizes[place] += parameter.numel()
    return sizes


def make_schedule(
    parts: Mapping[int, nn.Module],
    axes: Axes,
    loss: Callable[..., torch.Tensor],
    *,
    changes: Sequence[type] = (distributed.StageRepairs,),
    prepare: Callable[[object], None] = lambda _: None,
) -> Any:
    """Return PyTorch's schedule over this rank's stages; it scales no gradients: the loss has its weight already."""
    from torch.distributed import pipelining
    from torch.distributed.pipelining import PipelineStage, schedules

    strategy = axes.strategy
    word = SCHEDULES[strategy.schedule]
    kind = getattr(pipelining, word, None) or getattr(schedules, word, None)
    if kind is None:
        raise StrategyError(
            f"the schedule {strategy.schedule} needs {word}, which PyTorch {torch.__version__} does not have",
            hint='schedule="1f1b"',
        )
    group = axes.group("pipeline")
    kind_of_stage = type("Stage", (*changes, PipelineStage), {})
    own_stages = [
        kind_of_stage(part, number, strategy.num_stages, axes.world.device, group=group)
        for number, part in sorted(parts.items())
    ]
    for stage in own_stages:
        prepare(stage)
    stages = own_stages[0] if strategy.schedule in SINGLE else own_stages
    return kind(stages, n_microbatches=strategy.accumulation, loss_fn=loss, **unscaled(kind))


def as_named(inputs: Sequence[object]) -> dict[str, object]:
    """Return a model's inputs as every stage gets them, in the order of their names."""
    return {f"input_{place:03d}": one for place, one in enumerate(inputs)}


def forward_only(parts: Mapping[int, nn.Module], axes: Axes, inputs: Sequence[torch.Tensor]) -> Any:
    """Compute stage after stage; return the output of the last stage, on its rank. PyTorch's eval() knows no schedules
    shaped like a V (2.13: "can't steal_bwd_input if this stage doesn't have backward")."""
    place, group = axes.place("pipeline"), axes.group("pipeline")
    owner = {number: rank for rank in range(axes.sizes["pipeline"]) for number in places(axes.strategy, rank)}
    carried: object = None
    for number in range(axes.strategy.num_stages):
        source = owner[number - 1] if number else owner[number]
        if source != owner[number] and place in (source, owner[number]):
            carried = _hand_over(carried, place == source, source, owner[number], group, axes.world.device)
        if owner[number] == place:
            received = inputs if number == 0 else (carried,)
            carried = parts[number](*received, **as_named(inputs))
    return carried if place == owner[axes.strategy.num_stages - 1] else None


def _hand_over(carried: Any, gives: bool, source: int, target: int, group: Any, device: torch.device) -> Any:
    source, target = dist.get_global_rank(group, source), dist.get_global_rank(group, target)
    if gives:
        messages.send((tuple(carried.shape), carried.dtype), target)
        messages.send_tensors(carried, target)
        return None
    shape, dtype = messages.receive(source)
    carried = torch.empty(shape, dtype=dtype, device=device)
    messages.receive_tensors(carried, source)
    return carried
