"""Run a script for real, and measure what PyTorch's allocator on the CPU has live.

The bytes are those of the profiler's memory events, which the allocator writes itself. They are given for the phases of
the last step that a trace sees, by marks of the same hooks as in a trace.
"""

import gc
import json
import runpy
import sys
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook
from torch.profiler import ProfilerActivity, profile, record_function

from echelon.tracing.course import StepTracer, StopTracing
from echelon.tracing.ledger import Ledger


class Marks(Ledger):
    """Notes marks in the profile, and looks at no operation."""

    def mark(self, *words: Any) -> None:
        if len(words) == 1:
            with record_function(f"mark {words[0]}"):
                pass

    def number(self, tensor: torch.Tensor) -> None:
        return None


class Kinds:
    """Counts the bytes of weights, gradients and states by the tensors that the optimizers have."""

    def __init__(self) -> None:
        self.optimizers: list[torch.optim.Optimizer] = []
        self.bytes: dict[str, int] = {}
        register_optimizer_step_pre_hook(self._before)
        register_optimizer_step_post_hook(self._after)

    def _before(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        if not any(optimizer is one for one in self.optimizers):
            self.optimizers.append(optimizer)
        gradients = [one.grad for one in self._weights() if one.grad is not None]
        self.bytes |= {"gradient": num_bytes(gradients)}

    def _after(self, *_: Any) -> None:
        modules = [one for one in gc.get_objects() if issubclass(type(one), torch.nn.Module)]
        weights = [*self._weights(), *(weight for module in modules for weight in module.parameters())]
        buffers = [buffer for module in modules for buffer in module.buffers()]
        states = [one for optimizer in self.optimizers for state in optimizer.state.values() for one in state.values()]
        tensors = {"parameter": weights, "buffer": buffers, "state": states}
        self.bytes |= {kind: num_bytes(one) for kind, one in tensors.items()}

    def _weights(self) -> Iterator[torch.Tensor]:
        return (
            weight for optimizer in self.optimizers for group in optimizer.param_groups for weight in group["params"]
        )


def num_bytes(values: Iterable[Any]) -> int:
    """Return the bytes of the storages of tensors, each once."""
    storages = [
        tensor.untyped_storage() for tensor in values if isinstance(tensor, torch.Tensor) and not tensor.is_sparse
    ]
    return sum({tensor.data_ptr(): tensor.nbytes() for tensor in storages}.values())


def measure(script: str, out: str) -> None:
    """Run the script, and write {"forward": bytes, "forward peak": bytes, …, "kinds": {"state": bytes, …}}."""
    marks, kinds = Marks(counts_all=True), Kinds()
    StepTracer(marks).install()
    sys.argv = [script]
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        try:
            runpy.run_path(script, run_name="__main__")
        except StopTracing:
            pass
    events: list[tuple[int, int | str]] = []
    for event in profiler.profiler.kineto_results.events():
        if event.name() == "[memory]":
            events.append((event.start_ns(), event.nbytes()))
        elif event.name().startswith("mark "):
            events.append((event.start_ns(), event.name()[5:]))
    course = course_of([event for _, event in sorted(events, key=lambda row: row[0])])
    with open(out, "w", encoding="utf-8") as file:
        json.dump({**course, "kinds": kinds.bytes}, file)


def course_of(events: "Iterable[int | str]") -> dict[str, int]:
    """Return the live bytes at the end of each phase of the last step, and the most in each."""
    now = most = 0
    phase, result = "building", {}
    for event in events:
        if isinstance(event, int):
            now += event
            most = max(most, now)
            continue
        result |= {phase: now, f"{phase} peak": most}
        if event == "step":
            result = {}
        phase = "forward" if event == "step" else event
        most = now
    return result
