"""Record a rank's other acts, which tell causes of differences apart: collectives, files, random draws, prints.

Record the activation trace: the inputs and outputs of the script's modules in the first step, in order of calls.

With it `echelon prove` finds the first module whose output differs from that of one device.
"""

import fcntl
import functools
import os
import random
import sys
import zlib
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.modules.module import register_module_forward_hook

from ...orders.records import GRADIENT, PARAMETER, READS, REMOVES, WRITES
from .. import patches
from ..function_types import Function, Kwargs
from ..wire.gather import is_sharded
from .record import MOST_TEXT, Record

_REDUCING = ("all_reduce", "reduce", "reduce_scatter", "reduce_scatter_tensor", "broadcast")
_GATHERING = ("all_gather", "all_gather_into_tensor", "gather", "all_to_all", "all_to_all_single")
_MEETING = ("barrier", "monitored_barrier", "new_group", "all_gather_object", "broadcast_object_list", "gather_object")
_NOTED_STEPS = 3  # whose collectives are noted
_MOST_NUMBERS = 1 << 20  # of a tensor that is held until the step


def begin(record: Record) -> "DrawWatch":
    """Install all observers of acts; return the random draws, to which the loaders must report."""
    meetings = _Meetings(record)
    draws = DrawWatch(record)
    _hook_files(record)
    activation_trace = ActivationTrace(record)

    def at_step() -> None:
        draws.at_step()
        meetings.at_step()
        activation_trace.at_step()
        if record.step == 1:
            names = [one.names[0] for one in record.trained]
            # of parameters that are in no module: the model has replaced its tensors since
            record.facts["unowned"] = [name for name in names if name.startswith("parameter ")]

    record.at_step = at_step
    return draws


class _Meetings:
    """The collectives of a rank, in order; an optimizer step counts as one, because gradients are exchanged by then."""

    def __init__(self, record: Record) -> None:
        self._record = record
        self._is_inside = False
        self._fresh: list[tuple[torch.Tensor, int]] = []  # references, so that their addresses stay unique
        record.facts.update(collectives=[], gathers_without_gradient=0)
        for name in (*_REDUCING, *_GATHERING, *_MEETING):
            self._hook(name)
        self._hook_wrapping()

    def at_step(self) -> None:
        self._record.meetings += 1
        owners = {}
        for trained in self._record.trained:
            for tensor, kind in ((trained.parameter, PARAMETER), (trained.parameter.grad, GRADIENT)):
                if tensor is not None and not is_sharded(tensor):
                    owners[tensor.data_ptr()] = kind + trained.names[0]
        if self._record.step <= _NOTED_STEPS:
            self._record.facts["collectives"] += [[owners.get(one.data_ptr(), ""), size] for one, size in self._fresh]
        self._fresh = []

    def _hook(self, name: str) -> None:
        original = getattr(dist, name, None)
        if original is None:
            return

        @functools.wraps(original)
        def meet(*args: object, **kwargs: object) -> object:
            if self._is_inside:
                return original(*args, **kwargs)
            self._is_inside = True
            try:
                self._note(name, args, kwargs)
                return original(*args, **kwargs)
            finally:
                self._record.meetings += 1
                self._is_inside = False

        for module in (dist, dist.distributed_c10d):
            patches.replace(module, name, meet, why="A record has the collectives of each step.")

    def _hook_wrapping(self) -> None:
        """Count the wrapping of a model, where the ranks agree on its weights."""
        wrapper: Any = nn.parallel.DistributedDataParallel
        original = wrapper.__init__

        @functools.wraps(original)
        def wrap(wrapped: object, *args: object, **kwargs: object) -> None:
            original(wrapped, *args, **kwargs)
            self._record.meetings += 1

        patches.replace(wrapper, "__init__", wrap, why="A record counts the models that are wrapped.")

    def _note(self, name: str, args: tuple[object, ...], kwargs: Kwargs) -> None:
        if self._record.step >= _NOTED_STEPS or len(self._fresh) > 1000:
            return
        tensor = next((one for one in [*reversed(args), *kwargs.values()] if isinstance(one, torch.Tensor)), None)
        if tensor is None or type(tensor) not in (torch.Tensor, nn.Parameter):
            return
        if name in _GATHERING and torch.is_grad_enabled() and tensor.requires_grad:
            self._record.facts["gathers_without_gradient"] += 1
        if name in _REDUCING and tensor.numel() <= _MOST_NUMBERS:
            self._fresh.append((tensor.detach(), dist.get_world_size(kwargs.get("group"))))


class DrawWatch:
    """Whether the script draws random numbers between a batch and its step."""

    def __init__(self, record: Record) -> None:
        self._record = record
        self._seen: tuple[int, int, int] | None = None  # when the script was given a batch
        self._was_drawn = False
        self._drawn_from = 0
        record.facts["draws"] = []

    def given(self) -> None:
        """Note the states of the generators when the script gets a batch."""
        self._seen = _states()

    def asked(self) -> None:
        """Note whether the generators have changed when the script asks for the next batch, or steps."""
        if self._seen is not None:
            moved = [before for before, now in zip(self._seen, _states(), strict=False) if before != now]
            self._was_drawn = self._was_drawn or bool(moved)
            self._drawn_from = sum(moved) or self._drawn_from
        self._seen = None

    def at_step(self) -> None:
        self.asked()
        if self._was_drawn and len(self._record.facts["draws"]) < MOST_TEXT:
            self._record.facts["draws"].append([self._record.step, self._drawn_from])
            self._record.about["draws"] = True
        self._was_drawn = False


def _states() -> tuple[int, int, int]:
    numpy = sys.modules.get("numpy.random")
    of_numpy = zlib.crc32(numpy.get_state()[1].tobytes()) if numpy is not None else 0
    of_torch = zlib.crc32(torch.get_rng_state().numpy().tobytes())
    return of_torch, zlib.crc32(repr(random.getstate()).encode()), of_numpy


def _hook_files(record: Record) -> None:
    record.facts["files"] = []
    locks = _Locks()
    pid = os.getpid()

    def watched(original: Callable[..., object], deed: str, place: int) -> Function:
        @functools.wraps(original)
        def do(*args: object, **kwargs: object) -> object:
            path: Any = args[place] if len(args) > place else kwargs.get("f")
            is_seen = isinstance(path, (str, os.PathLike)) and kwargs.get("dir_fd") is None and os.getpid() == pid
            if is_seen and not locks.num_held and not record.owns(path):
                record.facts["files"].append([deed, os.path.abspath(path), record.meetings, record.step])
                record.write_facts()
            return original(*args, **kwargs)

        return do

    removals = ((os, "remove", REMOVES, 0), (os, "unlink", REMOVES, 0))
    for owner, name, deed, place in ((torch, "save", WRITES, 1), (torch, "load", READS, 0), *removals):
        new = watched(getattr(owner, name), deed, place)
        patches.replace(owner, name, new, why="A record has the files that are written, read and removed.")


class _Locks:
    """The number of files that this process has locked: meanwhile, other processes may wait without a collective."""

    def __init__(self) -> None:
        self.num_held = 0
        original = fcntl.flock

        @functools.wraps(original)
        def flock(descriptor: Any, operation: int) -> None:
            original(descriptor, operation)
            self.num_held = max(0, self.num_held + (-1 if operation & fcntl.LOCK_UN else 1))

        patches.replace(fcntl, "flock", flock, why="A record tells which files were locked meanwhile.")


MOST_CALLS = 512
MOST_NUMBERS = 1 << 16  # of each output


class ActivationTrace:
    """Records each call of a module: its input, output and bias."""

    def __init__(self, record: Record) -> None:
        self._record = record
        self._calls: list[dict[str, object]] = []
        self._handle: Any = patches.hook(
            register_module_forward_hook, self._note, why="A record has the outputs of each module in the first step."
        )

    def at_step(self) -> None:
        if self._handle is None:
            return
        self._handle.undo()
        self._handle = None
        named = self._record.modules
        calls = [{**call, "module": named[call["module"]]} for call in self._calls if call["module"] in named]
        self._record.keep_activations(calls)
        self._calls = []

    def _note(self, module: nn.Module, inputs: tuple[object, ...], output: Any) -> None:
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
