"""The ledger of a training's memory: each storage that a device would allocate and free, in order."""

import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch.utils.flop_counter import flop_registry

from ..pytorch import internals
from . import unknown_shapes
from .unknown_shapes import WORKSPACES, is_fake

PARAMETER, GRADIENT, STATE, BUFFER, INPUT, ACTIVATION, TEMPORARY, WORKSPACE = (
    "parameter", "gradient", "state", "buffer", "input", "activation", "temporary", "workspace",
)  # fmt: skip
BUILDING, FORWARD, BACKWARD, OPTIMIZER = "building", "forward", "backward", "optimizer"
_EXCHANGED = ("parameter", "gradient", "state", "buffer")  # categories that do not depend on the number of rows
_LARGER: dict[Any, Callable[[Any], int]] = {
    getattr(torch.ops.aten, name).default: lambda args: args[0].numel() * args[0].element_size()
    for name in ("binary_cross_entropy", "mse_loss", "smooth_l1_loss", "soft_margin_loss")
}
"""Operations that return a tensor in a larger storage: the mean of a loss is written where its terms were."""


class Storage:
    """A storage on the device."""

    __slots__ = ("bytes", "category", "is_of_rows", "is_on_device", "module", "phase", "shape")

    def __init__(self, num_bytes: int, phase: str, module: int, shape: tuple[int, ...], *, is_of_rows: bool) -> None:
        self.bytes = num_bytes
        self.is_on_device = False
        self.category = TEMPORARY
        self.phase = phase
        self.module = module
        self.shape = shape
        self.is_of_rows = is_of_rows


class Ledger(internals.DispatchMode):  # type: ignore[misc]
    """Notes the storages of fake tensors; a tensor is on the device if an input is, or if it is moved there.

    A script that uses no device is traced as if its weights, its batches and all that follows were on it; a trace for a
    CPU counts all storages.
    """

    def __init__(self, *, counts_all: bool) -> None:
        super().__init__()
        self.storages: list[Storage] = []
        self.events: list[Any] = []
        self.phase = BUILDING
        self.module = -1
        self.flops = {FORWARD: 0, BACKWARD: 0}
        self._former_flops = self.flops
        self.is_moving = False
        """Whether what is made now is on the device."""
        self.depth = 0
        """How many operations are being computed: their code sees tensors on the CPU."""
        self._counts_all = counts_all
        self.is_closed = False
        self._ids: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()
        self._ends: dict[int, Any] = {}
        self._alive: set[int] = set()
        self._counters = _counters()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Compute shapes, and note what is new."""
        kwargs = kwargs or {}
        self.depth += 1
        try:
            result = unknown_shapes.call(func, args, kwargs)
        finally:
            self.depth -= 1
        inputs = [value for value in internals.tree_iter((args, kwargs)) if isinstance(value, torch.Tensor)]
        self._note(inputs, result, int(_LARGER[func](args)) if func in _LARGER else 0)
        if func in WORKSPACES and not self._counts_all:
            self._work(inputs, WORKSPACES[func](args, result))
        counter = self._counters.get(internals.packet_of(func))
        if counter is not None and self.phase in self.flops:
            self.flops[self.phase] += int(counter(*args, **kwargs, out_val=result))
        return result

    def number(self, tensor: torch.Tensor) -> int | None:
        """Return the number of a tensor's storage; None if it is not on the device."""
        return self._ids.get(_storage(internals.unwrapped(tensor)))

    def of(self, tensor: torch.Tensor) -> Storage | None:
        """Return what is known of a tensor's storage; None if it is not on the device."""
        number = self.number(tensor) if tensor.layout == torch.strided else None
        return None if number is None else self.storages[number]

    def is_on_device(self, tensor: torch.Tensor) -> bool:
        known = self.of(tensor)
        return known is not None and known.is_on_device

    def set_category(self, tensor: torch.Tensor | None, category: str) -> None:
        known = None if tensor is None else self.of(tensor)
        if known is not None:
            known.category = category
            known.is_of_rows = known.is_of_rows and category not in _EXCHANGED

    def keep_activations(self) -> None:
        """Say that what was computed forward, and is alive now, is kept for the pass backward."""
        for number in self._alive:
            known = self.storages[number]
            if known.category == TEMPORARY and known.phase == FORWARD:
                known.category = ACTIVATION

    def mark(self, *words: object) -> None:
        """Add a mark to the events; with a step the operations are counted anew."""
        if words == ("step",):
            self._former_flops, self.flops = self.flops, {FORWARD: 0, BACKWARD: 0}
        self.events.append(words[0] if len(words) == 1 else list(words))

    def take_back(self, word: str) -> None:
        """Remove a mark after which no backward() has begun."""
        for position in range(len(self.events) - 1, -1, -1):
            event = self.events[position]
            if event == word:
                del self.events[position]
                self.flops = self._former_flops
            if isinstance(event, str):
                return

    def close(self) -> None:
        """Note nothing more: what the end of the script frees is no part of the training."""
        self.is_closed = True

    def _note(self, inputs: list[torch.Tensor], result: object, least_bytes: int) -> None:
        results = [value for value in internals.tree_iter(result) if isinstance(value, torch.Tensor)]
        if not (self._counts_all or self.is_moving or any(map(is_fake, inputs)) or any(map(is_fake, results))):
            return
        for tensor in inputs:  # a batch that has data
            self._add(tensor, is_of_rows=True, is_on_device=False)
        known = [value for value in map(self.of, inputs) if value is not None]
        is_on_device = self.is_moving or any(value.is_on_device for value in known)
        is_of_rows = self.phase != OPTIMIZER and (not known or any(value.is_of_rows for value in known))
        for tensor in results:
            self._add(tensor, is_of_rows=is_of_rows, is_on_device=is_on_device, least_bytes=least_bytes)

    def _add(self, tensor: torch.Tensor, *, is_of_rows: bool, is_on_device: bool, least_bytes: int = 0) -> None:
        if tensor.layout != torch.strided:
            self._add_parts(tensor, is_of_rows=is_of_rows, is_on_device=is_on_device)
            return
        storage = _storage(tensor)
        if storage in self._ids or self.is_closed:
            return
        number = len(self.storages)
        num_bytes = max(storage.nbytes(), least_bytes)
        made = Storage(num_bytes, self.phase, self.module, tuple(tensor.shape), is_of_rows=is_of_rows)
        made.is_on_device = is_on_device
        self.storages.append(made)
        self._ids[storage] = number
        self._alive.add(number)
        self.events.append(number)
        self._ends[number] = weakref.ref(storage, lambda _: self._end(number))

    def _add_parts(self, tensor: torch.Tensor, **about: bool) -> None:
        if tensor.layout == torch.sparse_coo:
            for part in internals.sparse_parts(tensor):
                self._add(part, **about)

    def _work(self, inputs: list[torch.Tensor], sizes: list[int]) -> None:
        """Note the most that an operation may take beside its tensors, and give back."""
        known = [value for value in map(self.of, inputs) if value is not None]
        if self.is_closed or not known:
            return
        is_of_rows = any(value.is_of_rows for value in known)
        for size in sizes:
            made = Storage(size, self.phase, self.module, (size,), is_of_rows=is_of_rows)
            made.category, made.is_on_device = WORKSPACE, any(value.is_on_device for value in known)
            self.storages.append(made)
            self.events += [len(self.storages) - 1, -len(self.storages)]

    def _end(self, number: int) -> None:
        self._alive.discard(number)
        self._ends.pop(number, None)
        if not self.is_closed:
            self.events.append(-number - 1)


def _storage(tensor: torch.Tensor) -> Any:
    return internals.TensorBase.untyped_storage(tensor)


def _counters() -> dict[Any, Any]:
    """Return PyTorch's own counters of floating-point operations."""
    return dict(flop_registry)
