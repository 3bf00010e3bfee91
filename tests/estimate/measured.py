"""Measure the live bytes of small trainings under PyTorch's own strategies: `python -m tests.estimate.measured`.

The ranks of a fake process group send nothing, so one process shows what a rank of four allocates. Each line of the
output is a JSON array: the layout, the peak that the estimate has for it, and the peak that PyTorch has.
"""

from __future__ import annotations

import gc
import json
import sys
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from echelon.estimate import strategies
from echelon.estimate.layout import POLICY, Layout
from echelon.estimate.log import EventLog, read

NUM_RANKS, NUM_BLOCKS, WIDTH, WORDS, ROWS = 4, 3, 64, 300, 8
LAYOUTS = (
    Layout(),
    Layout(checkpointing=True),
    Layout(accumulation=2, rows=2 * ROWS),
    Layout(shard=4, rows=4 * ROWS),
    Layout(shard=4, rows=4 * ROWS, reshard="after-backward"),
    Layout(shard=2, replicate=2, rows=4 * ROWS),
    Layout(shard=4, rows=8 * ROWS, accumulation=2),
    Layout(shard=4, rows=4 * ROWS, checkpointing=True),
    Layout(shard=4, rows=4 * ROWS, precision=POLICY),
    Layout(shard=4, rows=4 * ROWS, precision=POLICY, reshard="after-backward"),
    Layout(shard=4, rows=8 * ROWS, precision=POLICY, accumulation=2),
)
OF_ACCUMULATING_SCRIPTS = (
    Layout(shard=4, accumulation=3),
    Layout(shard=4, accumulation=3, precision=POLICY),
)
"""The accumulation is that of the traced script."""


class Storages(TorchDispatchMode):
    """Writes an event when a tensor's memory is allocated or freed."""

    def __init__(self) -> None:
        super().__init__()
        self.tensors: list[list[Any]] = []
        self.events: list[Any] = []
        self.live = self.peak = 0
        self._ids: dict[int, int] = {}
        self._sizes: dict[int, int] = {}
        self._references: set[Any] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if any(issubclass(kind, DTensor) for kind in types):
            return NotImplemented  # its operations on the tensors of this rank follow
        result = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(result):
            if isinstance(leaf, torch.Tensor):
                self.index(leaf)
        return result

    def index(self, tensor: Any) -> int:
        """Return the index of a tensor, which may be new."""
        tensor = tensor._local_tensor if isinstance(tensor, DTensor) else tensor
        storage = getattr(tensor, "elem", tensor).untyped_storage()
        key = storage._cdata
        if key not in self._ids:
            self._ids[key] = len(self.tensors)
            self._sizes[self._ids[key]] = 0
            self.tensors.append([storage.nbytes(), "temporary", 0, 0])
            index = self._ids[key]

            def gone(reference: Any) -> None:
                self._ids.pop(key, None)
                self._references.discard(reference)
                self._resize(index, 0)

            self._references.add(weakref.ref(storage, gone))
            self._resize(index, storage.nbytes())
        return self._ids[key]

    @contextmanager
    def watching_resizes(self) -> Iterator[None]:
        """Notice storages that are resized, which no operation tells."""
        resize = torch.UntypedStorage.resize_

        def resized(storage: Any, num_bytes: int) -> Any:
            result = resize(storage, num_bytes)
            self.resized(storage, num_bytes)
            return result

        torch.UntypedStorage.resize_ = resized  # type: ignore[method-assign,assignment]
        try:
            yield
        finally:
            torch.UntypedStorage.resize_ = resize  # type: ignore[method-assign]

    def resized(self, storage: Any, num_bytes: int) -> None:
        """Note that a storage has another size."""
        if storage._cdata in self._ids:
            self._resize(self._ids[storage._cdata], num_bytes)

    def _resize(self, index: int, num_bytes: int) -> None:
        before, self._sizes[index] = self._sizes[index], num_bytes
        self.live += num_bytes - before
        self.peak = max(self.peak, self.live)
        if before and not num_bytes:
            self.events.append(-index - 1)
        elif num_bytes and not before:
            self.events.append(index)


class Block(nn.Module):
    """Two residual branches, without attention."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.mix, self.up, self.down = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        states = states + torch.tanh(self.mix(self.first(states)))
        return states + self.down(nn.functional.gelu(self.up(self.second(states))))


class Model(nn.Module):
    """An embedding, blocks and a head."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.head = nn.Embedding(WORDS, WIDTH), nn.Linear(WIDTH, WORDS, bias=False)
        self.blocks = nn.ModuleList(Block() for _ in range(NUM_BLOCKS))

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        states = self.words(tokens)
        for block in self.blocks:
            states = block(states)
        return self.head(states)


def train(model: nn.Module, storages: Storages, *, parts: int = 1) -> torch.optim.Optimizer:
    """Train for two steps of some micro-batches."""
    optimizer = torch.optim.AdamW(model.parameters())
    gc.collect()
    storages.peak = 0
    for _ in range(2):
        storages.events.append("step")
        for part in range(parts):
            tokens = torch.randint(0, WORDS, (ROWS, 32))
            loss = nn.functional.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten())
            storages.events.append("backward")
            for module in model.modules() if parts > 1 else ():
                if hasattr(module, "set_requires_gradient_sync"):
                    module.set_requires_gradient_sync(part == parts - 1)
                    module.set_is_last_backward(part == parts - 1)
            loss.backward()
            del loss, tokens
        storages.events.append("optimizer")
        optimizer.step()
        optimizer.zero_grad()
    storages.events.append("end")
    return optimizer


def traced(*, parts: int = 1) -> EventLog:
    """Return the log of the training on one device, with so many micro-batches a step."""
    storages = Storages()
    with storages:
        model = Model()
        names = dict(model.named_parameters())
        for weight in names.values():
            storages.tensors[storages.index(weight.data)][1] = "parameter"
            weight.register_post_accumulate_grad_hook(
                lambda weight: storages.tensors[storages.index(weight.grad)].__setitem__(1, "gradient")
            )
        for index, block in enumerate(model.blocks):
            _watch(block, index, storages.events)
        optimizer = train(model, storages, parts=parts)
        for state in optimizer.state.values():
            for value in state.values():
                storages.tensors[storages.index(value)][1] = "state"
        weights = [
            {
                "name": name,
                "bytes": weight.untyped_storage().nbytes(),
                "block": int(name.split(".")[1]) if name.startswith("blocks") else -1,
                "tensor": storages.index(weight.data),
                "length": len(weight),
            }
            for name, weight in names.items()
        ]
    phase = ""
    for event in storages.events:
        phase = event if isinstance(event, str) else phase
        if type(event) is int and event >= 0 and phase in ("step", "backward"):
            row = storages.tensors[event]
            row[1:] = ["activation", 0, 1] if row[1] == "temporary" else row[1:]
    return read(
        {
            "format": 1, "torch": torch.__version__, "device": "cpu", "rows": ROWS, "notes": [], "flops": {},
            "blocks": [f"blocks.{index}" for index in range(NUM_BLOCKS)], "weights": weights, "modules": [""],
            "tensors": storages.tensors, "events": storages.events,
        }
    )  # fmt: skip


def _watch(block: nn.Module, index: int, events: list[Any]) -> None:
    block.register_forward_pre_hook(lambda *_: events.append(["enter", index]))
    block.register_forward_hook(lambda *_: events.append(["leave", index]))
    block.register_full_backward_pre_hook(lambda *_: events.append(["enter backward", index]))
    block.register_full_backward_hook(lambda *_: events.append(["leave backward", index]))


def measured(layout: Layout) -> int:
    """Return the peak of a rank's live bytes under PyTorch."""
    storages = Storages()
    with storages, storages.watching_resizes():
        model = Model()
        if layout.checkpointing:
            model.blocks = nn.ModuleList(checkpoint_wrapper(block) for block in model.blocks)
        if layout.shard > 1:
            mesh = init_device_mesh("cpu", (NUM_RANKS,))
            if layout.replicate > 1:
                mesh = init_device_mesh("cpu", (layout.replicate, layout.shard), mesh_dim_names=("copies", "shards"))
            policies = [MixedPrecisionPolicy(), MixedPrecisionPolicy()]
            if layout.precision == POLICY:
                half = {"param_dtype": torch.bfloat16, "reduce_dtype": torch.float32}
                policies = [MixedPrecisionPolicy(**half), MixedPrecisionPolicy(**half, output_dtype=torch.float32)]
            for block in model.blocks:
                reshards = layout.reshard == "always"
                fully_shard(block, mesh=mesh, reshard_after_forward=reshards, mp_policy=policies[0])
            fully_shard(model, mesh=mesh, reshard_after_forward=False, mp_policy=policies[1])
        train(model, storages, parts=layout.accumulation)
    return storages.peak


def main() -> None:
    """Print a line for each layout that is named."""
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=NUM_RANKS)
    log = traced()
    for layout in LAYOUTS:
        name = f"{layout.name} {layout.reshard}"
        if name in sys.argv[1:]:
            print(json.dumps([name, strategies.memory(log, layout).peak.num_bytes, measured(layout)]), flush=True)
    for layout in OF_ACCUMULATING_SCRIPTS:
        name = f"script of {layout.name}"
        if name in sys.argv[1:]:
            traced_layout = layout.changed(accumulation=1, rows=4 * ROWS)
            expected = strategies.memory(traced(parts=layout.accumulation), traced_layout)
            print(json.dumps([name, expected.peak.num_bytes, measured(layout)]), flush=True)


if __name__ == "__main__":
    main()
