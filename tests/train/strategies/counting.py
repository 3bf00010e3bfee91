"""Count what one step sends, as PyTorch's profiler sees the process group, and what a rank keeps afterwards."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from tests.train.strategies import models, training
from torch.profiler import ProfilerActivity, profile

from echelon.train.strategies import norms
from echelon.train.strategies.strategy import Strategy
from echelon.train.wire import gather as wire_gather

SMALL = 4  # elements: the sums of losses, counts and norms are not what a formula is about
WORDS = {"all_reduce": "all-reduce", "all_gather": "all-gather", "send": "send", "broadcast": "broadcast"}


def count(kind: str, strategy: Strategy) -> dict[str, dict[str, float]]:
    """Return the elements that this rank gives to messages in a step, and those that it keeps."""
    trained = training.parallelized(kind, strategy)
    optimizer = trained.optimize(torch.optim.AdamW, lr=0.1)
    inputs, targets = models.batches(kind)[0]
    for _ in range(2):  # the first shows shapes around, the second has DDP's final buckets
        trained.step(inputs, targets)
    gathered = _Gathered()
    with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as profiled, gathered.counting():
        trained.step(inputs, targets)
    sent: dict[str, float] = {}
    for event in profiled.events():
        word = WORDS.get(event.name.removeprefix("gloo:"), "") if event.name.startswith("gloo:") else ""
        size = sum(number_of(shape) for shape in event.input_shapes)
        if word and size > SMALL:
            sent[word] = sent.get(word, 0) + size
    if gathered.given:  # sends that are left are others'
        rest = sent.pop("send", 0) - gathered.sent
        sent |= {"all-gather": sent.get("all-gather", 0) + gathered.given} | ({"send": rest} if rest else {})
    weights = trained.parameters().values()
    states = getattr(optimizer, "optim", optimizer).state.values()
    kept = {
        "weights": sum(norms.local(one).numel() for one in weights),
        "gradients": sum(norms.local(one.grad).numel() for one in weights if one.grad is not None),
        "states": sum(norms.local(one).numel() for each in states for one in each.values() if one.dim()),
    }
    return {"sent": sent, "kept": kept}


class _Gathered:
    """What our own all-gathers were given, and had to send for it."""

    def __init__(self) -> None:
        self.given = self.sent = 0

    @contextmanager
    def counting(self) -> Iterator[None]:
        gather = wire_gather.gather

        def count(parts: torch.Tensor, group: Any) -> None:
            size = parts.size(1) if parts.size(1) > SMALL else 0
            self.given += size
            self.sent += size * (group.size() - 1)
            gather(parts, group)

        wire_gather.gather = count
        try:
            yield
        finally:
            wire_gather.gather = gather


def number_of(shape: Any) -> int:
    """Return the elements of a shape, or of a list of shapes."""
    if shape and isinstance(shape[0], list | tuple):
        return sum(number_of(one) for one in shape)
    result = 1 if shape else 0
    for size in shape:
        result *= size
    return result
