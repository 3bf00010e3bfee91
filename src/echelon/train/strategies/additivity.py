"""Check that a loss is a mean over its targets: rows, tokens, or the number that `count` returns.

A loss that leaves out other targets, weighs classes, or compares samples of the batch with each other changes when
ranks compute parts of the batch. The check needs no communication: each rank halves its own rows.
"""

from typing import Any, Callable

import torch

from ..gather import whole
from .batches import each, tensors_of
from .strategy import Strategy, StrategyError

NUM_STEPS = 10
"""The number of steps that are checked: a first batch may have no target to leave out."""
TOLERANCE = {"fp32": 1e-4, "bf16": 2e-2, "fp16": 5e-3}


def matters(strategy: Strategy) -> bool:
    """Say whether a batch is computed in parts at all."""
    return strategy.num_data * strategy.accumulation * strategy.context > 1


@torch.no_grad()
def check(
    loss: Callable[..., Any], count: Callable[[Any], int], outputs: Any, targets: Any, whole: Any, strategy: Strategy
) -> None:
    """Compare the loss of some rows with the losses of their two halves."""
    tensors = [one for given in (targets, outputs) for one in tensors_of(given)]
    rows = tensors[0].size(0) if tensors and tensors[0].dim() else 0
    is_known = isinstance(outputs, (torch.Tensor, tuple, list)) or type(outputs) is dict
    if not is_known or rows < 2 or not all(one.dim() and one.size(0) == rows for one in tensors):
        return
    total, counted = 0.0, 0
    for first, end in ((0, rows // 2), (rows // 2, rows)):
        part_outputs, wanted = (each(_rows(first, end), two) for two in (outputs, targets))
        number = count(wanted)
        if number:
            total += number * float(_plain(loss(part_outputs, wanted)))
            counted += number
    expected = float(_plain(whole)) * counted
    if counted and abs(total - expected) > TOLERANCE[strategy.precision] * max(abs(total), abs(expected), 1e-6):
        raise StrategyError(
            "the loss of %d rows is %.6g, but their two halves together give %.6g: the loss is no mean over %d "
            "targets, so no rank can compute its part" % (rows, expected / counted, total / counted, counted),
            hint="tell over how many targets the loss is a mean: run.parallelize(…, count=lambda targets: (targets "
            "!= 0).sum()); a loss that compares samples with each other needs the whole batch on one rank",
        )


def _rows(first: int, end: int) -> Callable[[torch.Tensor], torch.Tensor]:
    return lambda tensor: tensor.detach()[first:end]


def _plain(loss: Any) -> Any:
    return whole(loss)
