"""Record the training of a script that distributes itself, with hooks alone: its behaviour is unchanged."""

import json
from collections.abc import Mapping
from functools import partial
from typing import Any

import torch
from torch import nn

from .. import patches
from ..function_types import Function
from ..rng.generators import seed_all
from ..wire.gather import is_sharded
from ..wire.world import SEED_OF_RECORDS
from . import loaders, watch
from .record import MOST_OF_OTHERS, Record, asked
from .steps import listen, trained_by


def begin(environ: Mapping[str, str]) -> None:
    rank = int(environ.get("RANK", "0"))
    record = asked(environ, is_main=rank == 0)
    if record is None:
        return
    record.is_watched = True
    seed_all(SEED_OF_RECORDS + rank)  # ranks differ unless the script seeds them, as they would without us
    like: dict[str, object] = {}
    if record.order.like:  # the facts of the run on several ranks that this run repeats
        with open(record.order.like) as file:
            like = json.load(file)
    watched_loaders = loaders.Loaders(record, like)
    _hook_backward(record, watched_loaders)
    listen(record, trained_by)
    draws = watch.begin(record)
    loaders.hook(watched_loaders, draws.asked, draws.given)


def _hook_backward(record: Record, watched_loaders: loaders.Loaders) -> None:
    """Note each loss, its samples, and the gradients that this rank computes by itself."""
    original: Function = torch.autograd.backward
    local = _Local(record)

    def backward(tensors: Any, *args: object, **kwargs: object) -> None:
        watched_loaders.trained()
        local.listen()
        record.passes += 1
        original(tensors, *args, **kwargs)
        losses = [tensors] if isinstance(tensors, torch.Tensor) else list(tensors)
        is_given = (args[0] if args else kwargs.get("grad_tensors")) is not None  # from another pipeline stage
        if len(losses) == 1 and losses[0].numel() == 1 and not is_given:
            record.set_loss((record.loss or 0.0) + float(losses[0].detach()))

    patches.replace(torch.autograd, "backward", backward, why="A record has the loss and the gradients of each step.")


class _Local:
    """The gradients of this rank before they are exchanged: a tensor's own hook is called first."""

    def __init__(self, record: Record) -> None:
        self._record = record
        self._heard: set[int] = set()
        self._parameters: list[nn.Parameter] = []  # references, so that their ids stay unique
        self._size = 0
        optimizers: Any = torch.optim.Optimizer
        original = optimizers.add_param_group

        def add(optimizer: torch.optim.Optimizer, group: dict[str, object]) -> None:
            original(optimizer, group)
            self._parameters += [one for one in optimizer.param_groups[-1]["params"] if _is_plain(one)]

        patches.replace(optimizers, "add_param_group", add, why="A record has the gradients of each trained weight.")

    def listen(self) -> None:
        """Hook the gradients of all parameters that are trained by now."""
        for parameter in self._parameters:
            if parameter.requires_grad and id(parameter) not in self._heard:
                self._heard.add(id(parameter))
                self._size += parameter.numel() * parameter.element_size()
                if self._size <= MOST_OF_OTHERS:
                    parameter.register_hook(partial(self._note, id(parameter)))  # type: ignore[no-untyped-call]

    def _note(self, key: int, gradient: torch.Tensor) -> None:
        if self._record.step < 2 and not is_sharded(gradient) and gradient.layout == torch.strided:
            before, mine = self._record.local.get(key), gradient.detach()
            self._record.local[key] = mine.clone() if before is None else before + mine


def _is_plain(parameter: object) -> bool:
    is_whole = not is_sharded(parameter) and type(parameter).__name__ != "FlatParameter"
    return is_whole and isinstance(parameter, torch.Tensor) and parameter.is_leaf
