"""Let a record follow the steps of a training, beside it."""

import gc
import weakref
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import nn

from .. import events
from ..base_parallelism import Parallelism
from ..global_tensors.tensors import plain, tensors_of
from ..wire.gather import is_dtensor
from ..wire.world import SEED_OF_RECORDS
from .record import Record


def listen(
    record: Record,
    parameters: Callable[[torch.optim.Optimizer], list[nn.Parameter]],
    shown: Callable[[], AbstractContextManager[None]] = nullcontext,
) -> None:
    """Record each step: before it these parameters and their gradients, as they are inside of `shown`."""

    def before(optimizer: torch.optim.Optimizer) -> None:
        with shown():
            if record.order.is_nudged:
                nudge(trained_by(optimizer))
            record.before_step(optimizer, parameters(optimizer))

    def after(optimizer: torch.optim.Optimizer) -> None:
        with shown():
            record.after_step(optimizer)

    events.before_step.listen("record", before, why="A record has the gradients that a step uses.")
    events.after_step.listen("record", after, why="A record is written after each step.")


def listen_to(record: Record, parallelism: Callable[[], Parallelism]) -> None:
    """Record the steps, batches and losses of a run; its parallelism may still change."""

    def note_batch(batch: object, indices: list[object]) -> None:
        record.batch = tensors_of(batch), indices

    def note_loss(loss: torch.Tensor) -> None:
        if loss.numel() == 1:
            record.set_loss(float(plain(loss).detach()))

    met: weakref.WeakSet[torch.optim.Optimizer] = weakref.WeakSet()

    def parameters(optimizer: torch.optim.Optimizer) -> list[nn.Parameter]:
        if optimizer not in met:
            gc.collect()  # else chance frees an optimizer that the script has replaced, on one device or on several
            met.add(optimizer)
        every = [parameter for known in parallelism().known_optimizers() for parameter in trained_by(known)]
        return list({id(parameter): parameter for parameter in every}.values())

    events.batch.listen("record", note_batch)
    events.loss.listen("record", note_loss)
    listen(record, parameters, lambda: parallelism().shown())


def trained_by(optimizer: torch.optim.Optimizer) -> list[nn.Parameter]:
    return [one for group in optimizer.param_groups for one in group["params"] if one.requires_grad]


def nudge(parameters: list[nn.Parameter]) -> None:
    """Move each gradient by its last bit, randomly up or down, as a sum in another order would."""
    lots = torch.Generator().manual_seed(SEED_OF_RECORDS)
    for parameter in parameters:
        gradient: Any = parameter.grad
        if gradient is None or gradient.layout != torch.strided or not gradient.is_floating_point():
            continue
        local = gradient.to_local() if is_dtensor(gradient) else gradient
        direction = torch.randint(0, 2, local.shape, generator=lots).to(local) * 2 - 1
        size = local.detach().abs() + local.detach().pow(2).mean().sqrt()
        with torch.no_grad():
            local.add_(direction * size * torch.finfo(local.dtype).eps)
