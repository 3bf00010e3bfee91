"""What the modules of a script computed in its first step, in order: where a forward pass first goes another way."""

from typing import Any, Dict, List

import torch
from torch import nn
from torch.nn.modules.module import register_module_forward_hook

from .. import patches
from .record import Record

MOST_CALLS = 512
MOST_NUMBERS = 1 << 16  # of each output


class Trail:
    """Writes trail-R.pt at the first step: for each call its module, what went in and what came out."""

    def __init__(self, record: Record) -> None:
        self._record = record
        self._calls: List[Dict[str, Any]] = []
        self._handle: Any = patches.hook(
            register_module_forward_hook, self._note, why="A record has the outputs of each module in the first step."
        )

    def at_step(self) -> None:
        """Write the calls of the first step under the names of their modules, and listen no more."""
        if self._handle is None:
            return
        self._handle.undo()
        self._handle = None
        named = self._record.modules
        calls = [{**call, "module": named[call["module"]]} for call in self._calls if call["module"] in named]
        self._record.keep("trail", calls)
        self._calls = []

    def _note(self, module: nn.Module, given: Any, came: Any) -> None:
        if not torch.is_grad_enabled() or len(self._calls) >= MOST_CALLS or not _is_kept(came):
            return
        if came.is_floating_point():
            eps = torch.finfo(came.dtype).eps
            self._record.facts["eps"] = max(eps, self._record.facts.get("eps", eps))
        first = next((one for one in given if _is_kept(one)), None)
        self._calls.append(
            {
                "module": id(module),
                "class": type(module).__name__,
                "in": None if first is None else first.detach().cpu().clone(),
                "out": came.detach().cpu().clone(),
                "bias": _bias(module),
            }
        )


def _bias(module: nn.Module) -> Any:
    bias: Any = getattr(module, "bias", None)
    return bias.detach().cpu().clone() if _is_kept(bias) else None


def _is_kept(value: Any) -> bool:
    return (
        type(value) in (torch.Tensor, nn.Parameter)
        and value.numel() <= MOST_NUMBERS
        and value.layout == torch.strided
        and not value.is_meta
    )
