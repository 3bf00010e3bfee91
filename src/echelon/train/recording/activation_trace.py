"""Record the activation trace: the inputs and outputs of the script's modules in the first step, in order of calls.

With it `echelon prove` finds the first module whose output differs from that of one device.
"""

from typing import Any, Dict, List

import torch
from torch import nn
from torch.nn.modules.module import register_module_forward_hook

from .. import patches
from .record import Record

MOST_CALLS = 512
MOST_NUMBERS = 1 << 16  # of each output


class ActivationTrace:
    """Records each call of a module: its input, output and bias."""

    def __init__(self, record: Record) -> None:
        self._record = record
        self._calls: List[Dict[str, Any]] = []
        self._handle: Any = patches.hook(
            register_module_forward_hook, self._note, why="A record has the outputs of each module in the first step."
        )

    def at_step(self) -> None:
        """Write the calls of the first step under the names of their modules, and end the trace."""
        if self._handle is None:
            return
        self._handle.undo()
        self._handle = None
        named = self._record.modules
        calls = [{**call, "module": named[call["module"]]} for call in self._calls if call["module"] in named]
        self._record.keep_activations(calls)
        self._calls = []

    def _note(self, module: nn.Module, inputs: Any, output: Any) -> None:
        if not torch.is_grad_enabled() or len(self._calls) >= MOST_CALLS or not _is_kept(output):
            return
        if output.is_floating_point():
            eps = torch.finfo(output.dtype).eps
            self._record.facts["eps"] = max(eps, self._record.facts.get("eps", eps))
        first = next((tensor for tensor in inputs if _is_kept(tensor)), None)
        bias = getattr(module, "bias", None)
        self._calls.append({"module": id(module), "in": _copy(first), "out": _copy(output), "bias": _copy(bias)})


def _copy(value: Any) -> Any:
    return value.detach().cpu().clone() if _is_kept(value) else None


def _is_kept(value: Any) -> bool:
    return (
        type(value) in (torch.Tensor, nn.Parameter)
        and value.numel() <= MOST_NUMBERS
        and value.layout == torch.strided
        and not value.is_meta
    )
