"""Write event logs by hand, and those of models of any size."""

from __future__ import annotations

from typing import Any

from echelon.estimate.log import EventLog, read

MIB = 1 << 20


class Written:
    """A log that grows event by event."""

    def __init__(self, *, rows: int | None = 8, blocks: tuple[str, ...] = (), modules: tuple[str, ...] = ("",)) -> None:
        self.data: dict[str, Any] = {
            "format": 1, "torch": "2.13.0", "device": "gpu", "rows": rows, "notes": [],
            "flops": {"forward": 10, "backward": 20}, "blocks": list(blocks), "weights": [],
            "modules": list(modules), "tensors": [], "events": [],
        }  # fmt: skip

    def new(self, num_bytes: int, category: str = "temporary", *, module: str = "", grows: bool = False) -> int:
        """Allocate a tensor, and return its index."""
        self.data["tensors"].append([num_bytes, category, self.data["modules"].index(module), int(grows)])
        self.data["events"].append(len(self.data["tensors"]) - 1)
        return len(self.data["tensors"]) - 1

    def free(self, *tensors: int) -> None:
        """Free tensors."""
        self.data["events"] += [-tensor - 1 for tensor in tensors]

    def weight(self, name: str, num_bytes: int, block: int, *, length: int = 0) -> int:
        """Allocate a parameter."""
        tensor = self.new(num_bytes, "parameter")
        self.data["weights"].append(
            {"name": name, "bytes": num_bytes, "block": block, "tensor": tensor, "length": length}
        )
        return tensor

    def mark(self, *event: Any) -> None:
        """Begin a phase, or cross the border of a block."""
        self.data["events"].append(event[0] if len(event) == 1 else list(event))

    def read(self) -> EventLog:
        """Return the log as it is read from a file."""
        return read(self.data)


def of_model(
    *,
    num_blocks: int = 4,
    block_bytes: int = 12 * MIB,
    outside_bytes: int = 8 * MIB,
    activation_bytes: int = 4 * MIB,
    num_activations: int = 4,
    rows: int = 8,
    num_states: int = 2,
    num_weights: int = 4,
) -> EventLog:
    """Return the log of a model of blocks: an embedding, blocks, a head and a loss, trained by Adam for two steps."""
    names = tuple(f"layers.{block}" for block in range(num_blocks))
    modules = ("", "embedding", "head", *names, *(f"{name}.mlp" for name in names))
    log = Written(rows=rows, blocks=names, modules=modules)
    log.weight("embedding.weight", outside_bytes, -1)
    for block in range(num_blocks):
        for index in range(num_weights):
            log.weight(f"layers.{block}.mlp.{index}.weight", block_bytes // num_weights, block)
    log.weight("head.weight", outside_bytes, -1)
    weights = [(weight["block"], weight["bytes"]) for weight in log.data["weights"]]
    gradients: list[int] = []
    kept: list[int] = []
    for step in range(2):
        log.mark("step")
        log.free(*gradients, *kept)
        gradients, kept = [], [log.new(4096, "input", grows=True)]
        hidden = log.new(activation_bytes, "activation", module="embedding", grows=True)
        saved: list[list[int]] = []
        for block in range(num_blocks):
            log.mark("enter", block)
            scratch = log.new(activation_bytes, "temporary", grows=True)
            parts = [
                log.new(activation_bytes, "activation", module=f"layers.{block}.mlp", grows=True)
                for _ in range(num_activations)
            ]
            log.free(scratch)
            saved.append(parts)
            log.mark("leave", block)
        logits = log.new(2 * activation_bytes, "activation", module="head", grows=True)
        log.mark("backward")
        upper = log.new(2 * activation_bytes, "temporary", grows=True)
        gradients.append(log.new(outside_bytes, "gradient", module="head"))
        lower = log.new(activation_bytes, "temporary", grows=True)
        log.free(logits, upper)
        for block in reversed(range(num_blocks)):
            log.mark("enter backward", block)
            for part in reversed(saved[block]):
                log.free(part)
            upper, lower = lower, log.new(activation_bytes, "temporary", grows=True)
            gradients += [log.new(size, "gradient") for owner, size in weights if owner == block]
            log.free(upper)
            log.mark("leave backward", block)
        gradients.append(log.new(outside_bytes, "gradient", module="embedding"))
        log.free(lower, hidden)
        log.mark("optimizer")
        if not step:
            for _, size in weights:
                for _ in range(num_states):
                    log.new(size, "state")
        scratches = [log.new(size) for _, size in weights]
        log.free(*scratches)
    log.mark("end")
    return log.read()
