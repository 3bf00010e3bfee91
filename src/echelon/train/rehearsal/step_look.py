"""Look at one step: the first output of a module, and the first gradient, that is not finite; then end all ranks."""

import json
import math
import os
import sys
from collections.abc import Mapping
from functools import partial

import torch
from torch import nn
from torch.nn.modules.module import register_module_forward_hook

from ...orders import rehearsal
from ...orders.rehearsal import Rehearsal
from ...pytorch import internals
from .. import events, modules, patches
from ..check import isolation
from ..measuring import value_watch
from ..measuring.value_watch import LOSS, ValueWatch
from ..recording import names
from ..wire import world
from . import faults

_WHY = "A rehearsal looks at one step."
_open = open  # before it is hooked: each rank writes its own file


class StepLook:
    """What one rank sees in the step."""

    def __init__(self, order: Rehearsal, rank: int, size: int, watch: ValueWatch) -> None:
        self._order = order
        self._rank = rank
        self._size = size
        self._watch = watch
        self._pid = os.getpid()
        self._has_begun = False
        self._weight: nn.Parameter | None = None
        """The first weight that was not finite before the step."""
        self._module: nn.Module | None = None
        """The first module with an output that is not finite."""
        self._output: dict[str, object] = {}
        self._gradient: nn.Parameter | None = None
        """The first weight with a gradient that is not finite, before ranks exchange gradients."""

    def listen(self) -> None:
        patches.hook(register_module_forward_hook, self._called, why=_WHY)
        events.before_step.listen("nudge", self._before_step, why=_WHY)

    def _is_now(self) -> bool:
        is_step = self._watch.num_steps + 1 == self._order.step and os.getpid() == self._pid
        is_of_script = torch.is_grad_enabled() and not (torch.compiler.is_compiling() or isolation.is_apart())
        return is_step and is_of_script

    def _begin(self) -> None:
        self._has_begun = True
        seen: set[int] = set()
        for module in modules.living():
            for weight in module.parameters(recurse=False):
                if weight.requires_grad and id(weight) not in seen:
                    seen.add(id(weight))
                    weight.register_hook(partial(self._note, weight))  # type: ignore[no-untyped-call]
                    self._weight = weight if self._weight is None and not _is_finite(weight) else self._weight

    def _note(self, weight: nn.Parameter, gradient: torch.Tensor) -> None:
        if self._gradient is None and not _is_finite(gradient):
            self._gradient = weight

    def _called(self, module: nn.Module, inputs: object, output: object) -> None:
        if self._module is not None or not self._is_now():
            return
        if not self._has_begun:
            self._begin()
        bad = next((tensor for tensor in _tensors(output) if not _is_finite(tensor)), None)
        if bad is None or not _is_of_script(module):
            return
        self._module = module
        self._output = {**_described(bad), "input_is_finite": all(map(_is_finite, _tensors(inputs)))}
        self._debug(f"the output of {self._name()} is not finite: module, inputs and output are here")

    def _debug(self, what: str) -> None:
        """Open a debugger where the caller is, if this rank has the keyboard."""
        if self._rank != self._order.debugged:
            return
        import pdb

        sys.stdout.write(f"{what}; up leads to the script, q goes on\n")
        debugger = pdb.Pdb()
        debugger.reset()
        debugger.interaction(sys._getframe(1), None)

    def _name(self) -> str:
        module = self._module
        return names.others([]).modules.get(id(module), type(module).__name__)

    def _before_step(self, _: torch.optim.Optimizer) -> None:
        if self._watch.num_steps + 1 != self._order.step or os.getpid() != self._pid:
            return
        losses = [value for value in self._watch.newest if value.what == LOSS]
        numbers = [value.number if value.tensor is None else float(value.tensor) for value in losses]
        if self._module is None and (self._gradient is not None or not all(map(math.isfinite, numbers))):
            self._debug("the outputs of all modules are finite, and the loss or its gradient is not")
        origin = losses[-1].origin if losses else None
        bad = origin.not_finite() if origin is not None else None
        seen = {
            "losses": list(map(str, numbers)),
            "pass": origin.num_pass if origin is not None else 0,
            "samples": origin.samples if origin is not None else [],
            "bad_sample": bad,
            "module": None if self._module is None else {
                "name": self._name(), "class": type(self._module).__name__, **self._output
            },
            "gradient": _named(self._gradient),
            "weight": _named(self._weight),
        }  # fmt: skip
        with _open(os.path.join(self._order.folder, rehearsal.STEP_FILE % self._rank), "w") as file:
            json.dump(seen, file)
        world.mark_last_step(self._order.folder, self._rank, self._order.step)
        world.end_with_others(self._order.folder, self._size)


def _is_of_script(module: nn.Module) -> bool:
    """Say whether a module is none of ours, nor a wrapper of one."""
    return not any(type(inner).__module__.startswith(("_echelon.", "echelon.")) for inner in module.modules())


def _named(weight: nn.Parameter | None) -> str | None:
    return None if weight is None else names.names([weight])[0]


def _tensors(values: object) -> "list[torch.Tensor]":
    return [value for value in internals.tree_iter(values) if isinstance(value, torch.Tensor)]


def _is_finite(tensor: torch.Tensor) -> bool:
    with torch.no_grad(), internals.plain_functions():
        local = getattr(tensor, "to_local", lambda: tensor)().detach()
        return not local.is_floating_point() or bool(internals.TensorBase.item(local.isfinite().all()))


def _described(tensor: torch.Tensor) -> dict[str, object]:
    with torch.no_grad(), internals.plain_functions():
        local = getattr(tensor, "to_local", lambda: tensor)().detach().cpu()
        finite = local[local.isfinite()]
        return {
            "shape": list(local.shape), "dtype": str(local.dtype).rpartition(".")[2], "values": local.numel(),
            "num_nan": int(local.isnan().sum()), "num_infinite": int(local.isinf().sum()),
            "least": float(finite.min()) if len(finite) else None, "most": float(finite.max()) if len(finite) else None,
        }  # fmt: skip


def begin(environ: Mapping[str, str]) -> None:
    order = rehearsal.read(environ)
    if order is None or not order.step or value_watch.current is None:
        return
    faults.install(order.scratch, order.original)
    StepLook(order, int(environ.get("RANK", "0")), int(environ.get("WORLD_SIZE", "1")), value_watch.current).listen()
