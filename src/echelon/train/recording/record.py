"""Record a training step by step, so that two trainings can be compared.

Each rank writes files of its own, named in `orders/records.py`. All ranks together make a sharded tensor
whole, and rank 0 writes it.
"""

import atexit
import builtins
import functools
import json
import math
import os
import sys
import time
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.modules.module import register_module_forward_pre_hook

from ...orders import records
from ...pytorch import internals
from .. import modules, patches
from ..wire import device as devices
from ..wire import world
from . import names
from .trained import Pairs, TrainedParameter, is_joined, trained, wholes

_save = torch.save  # before it is hooked, because each rank writes its own files
_open = open
MOST_OF_OTHERS = 64 << 20  # bytes of each kind that a rank other than 0 writes, and bytes of untrained tensors
MOST_TEXT = 400  # prints that are kept
KEPT_SAMPLES = 2048  # of each step, which show samples that are drawn twice


class Record:
    def __init__(self, order: records.RecordOrder, rank: int) -> None:
        self.order = order
        self._folder = order.folder
        self._num_steps = order.steps
        self._rank = rank
        self._acting: torch.optim.Optimizer | None = None  # the optimizer that steps; it may call others
        self._others: dict[str, torch.Tensor] = {}
        self._sources: dict[torch.optim.Optimizer, Any] = {}
        self.step = 0
        """The number of steps that have begun."""
        self.trained: list[TrainedParameter] = []
        self.is_watched = False
        """Whether the script distributes itself, so that any rank may hold tensors that other ranks lack."""
        self.about: dict[str, Any] = {}
        """The settings of this run, to check whether the requested run took place."""
        self.facts: dict[str, Any] = {}
        """Other observations on this rank, to find the cause of a difference."""
        self.loss: float | None = None
        """The sum of the losses of this step's backward passes."""
        self.passes = 0
        """The number of backward passes of this step."""
        self.batch: tuple[list[torch.Tensor], list[Any]] = ([], [])
        """The tensors of the last batch, and the indices of its samples where a sampler gave them."""
        self.samples: list[int] = []
        """The digests of the samples since the last step, in any order; empty if the samples are not seen."""
        self.chosen: list[Any] = []
        """The indices of these samples in their data set, where a sampler gave them."""
        self.local: dict[int, torch.Tensor] = {}
        """This rank's gradients of this step before their exchange, by the id of the parameter."""
        self.meetings = 0
        """The number of collectives that this rank has completed; a step counts as one."""
        self.modules: dict[int, str] = {}
        """The names of the modules, after the first training step has begun."""
        self.at_step: Callable[[], None] = lambda: None
        """Is called before the optimizer steps, when all values of the step are known."""
        self.clock = Clock()
        """The clock of the script, which stops while the record is written."""
        self.facts["seconds"] = self.clock.steps
        self._pid = os.getpid()
        atexit.register(self._leave_word)

    @property
    def is_main(self) -> bool:
        return self._rank == 0

    def gather_from(self, source: object, optimizer: torch.optim.Optimizer) -> None:
        self._sources[optimizer] = source

    def before_step(self, optimizer: torch.optim.Optimizer, parameters: list[nn.Parameter]) -> None:
        if self._acting is not None:
            return  # an optimizer within an optimizer
        self._acting = optimizer
        self.clock.stop()
        self.step += 1
        rates = [float(group["lr"]) for group in optimizer.param_groups]
        source = self._sources.get(optimizer)
        if source is not None:
            self.trained, rates = [source], source.rates()
        elif [id(one) for one in parameters] != [id(one.parameter) for one in self.trained]:
            self._meet(parameters)
        norms = dict(pair for one in self.trained for pair in one.norms())
        row = {
            "step": self.step,
            "learning_rate": rates[0],
            "learning_rates": rates,
            "loss": self.loss,
            "norms": norms,
            "passes": self.passes,
            "samples": len(self.samples),
            "digest": sum(self.samples) % records.NUM_DIGESTS,
            "drawn": self.samples[:KEPT_SAMPLES],
            "chosen": _digest(self.chosen) if len(self.chosen) == len(self.samples) else None,
        }
        with _open(os.path.join(self._folder, records.STEPS_FILE % self._rank), "a") as file:
            file.write(json.dumps(row) + "\n")
        self.samples, self.chosen = [], []
        self.passes = 0
        if self.step == 1:
            values = ((records.INITIAL + name, value) for one in self.trained for name, value in one.values())
            self._keep("start", values, self._sharded(records.INITIAL))
            self.facts["batch_norms"] = self._batch_norms()
        if self._keeps(self.step):
            gradients = ((records.GRADIENT + name, value) for one in self.trained for name, value in one.gradients())
            self._keep("gradients", gradients, self._sharded(records.GRADIENT))
            self._keep_what_is_local()
        self.at_step()
        self.local = {}
        self.clock.go()

    def _batch_norms(self) -> list[str]:
        """Return the names of BatchNorms whose statistics come from this rank's batch alone."""
        norms: Any = internals.BatchNormLayer
        own = (one for one in modules.living() if isinstance(one, norms) and not isinstance(one, nn.SyncBatchNorm))
        return sorted(self.modules[id(one)] for one in own if one.training and id(one) in self.modules)

    def after_step(self, optimizer: torch.optim.Optimizer) -> None:
        """Record the results of an optimizer step; end the script after the last requested step."""
        if optimizer is not self._acting:
            return
        self._acting = None
        self.clock.lap()
        if self.is_watched:
            self.loss = None
        if self._keeps(self.step):
            states = (pair for one in self.trained for pair in one.states(optimizer))
            self._keep("states", states, {name for one in self.trained if one.is_sharded for name in one.names})
            values = ((records.PARAMETER + name, value) for one in self.trained for name, value in one.values())
            self._keep("parameters", values, self._sharded(records.PARAMETER))
            self.write_facts()
            self._forget_older()
        if self.is_main:
            self._write_about()
        if self.step >= self._num_steps:
            self._end()
        self.clock.go()

    def owns(self, path: "str | os.PathLike[str]") -> bool:
        return os.path.abspath(path).startswith(os.path.abspath(self._folder) + os.sep)

    def set_loss(self, loss: float) -> None:
        """Set the loss of this step; note the first loss that is no number, and a sample that explains it."""
        self.loss = loss
        if not math.isfinite(loss) and "no_number" not in self.facts:
            self.facts["no_number"] = {"step": self.step + 1, "loss": str(loss), **_not_finite(*self.batch)}

    def keep_activations(self, calls: list[dict[str, Any]]) -> None:
        _save(calls, os.path.join(self._folder, records.ACTIVATIONS_FILE % self._rank))

    def write_facts(self) -> None:
        """Write the observations so far, because a script may fail before its next step."""
        with _open(os.path.join(self._folder, records.FACTS_FILE % self._rank), "w") as file:
            json.dump(self.facts, file)

    def _meet(self, parameters: list[nn.Parameter]) -> None:
        self.trained = trained(parameters)
        other_tensors = names.others(parameters)
        self.modules = other_tensors.modules
        if self.is_watched:
            size = sum(tensor.numel() * tensor.element_size() for tensor in other_tensors.tensors.values())
            self._others = other_tensors.tensors if size <= MOST_OF_OTHERS else {}

    def _keeps(self, step: int) -> bool:
        """Say whether a step's tensors are kept: the last step and powers of two, because a script may end early."""
        return step == self._num_steps or step & (step - 1) == 0

    def _forget_older(self) -> None:
        older = self.step // 2
        if older <= 2 or self.step & (self.step - 1):
            return
        for kind in records.KINDS:
            path = os.path.join(self._folder, records.tensors_file(older, kind, self._rank))
            if os.path.exists(path):
                os.remove(path)

    def _sharded(self, prefix: str) -> "set[str]":
        """Return the labels of tensors that all ranks join."""
        return {prefix + name for one in self.trained if one.is_sharded for name in one.names}

    def _keep(self, kind: str, tensors: Pairs, sharded: "set[str]") -> None:
        """Write the tensors of a kind: rank 0 writes all, other ranks write the tensors that they hold alone."""
        kept: dict[str, torch.Tensor] = {}
        size = 0
        for label, tensor in wholes(tensors):  # all ranks must call this
            is_own = label not in sharded and label.rpartition(" of ")[2] not in sharded
            size += tensor.numel() * tensor.element_size() if is_own else 0
            if self.is_main or (self.is_watched and is_own and size <= MOST_OF_OTHERS):
                kept[label] = tensor.cpu()
        if self.is_main or self.is_watched:
            _save(kept, os.path.join(self._folder, records.tensors_file(self.step, kind, self._rank)))

    def _keep_what_is_local(self) -> None:
        if not self.is_watched:
            return
        self._keep("others", self._others.items(), set())
        named = {id(one.parameter): one.names[0] for one in self.trained}
        local = {named[key]: gradient for key, gradient in self.local.items() if key in named}
        if local and self.step <= 2:
            _save(local, os.path.join(self._folder, records.LOCAL_FILE % (self.step, self._rank)))

    def _write_about(self) -> None:
        self.about.update(
            world_size=dist.get_world_size() if is_joined() else 1,
            is_joined=is_joined(),
            num_parameters=sum(len(one.names) for one in self.trained),
            num_sharded=sum(one.num_cut for one in self.trained),
        )
        with _open(os.path.join(self._folder, records.ABOUT), "w") as file:
            json.dump(self.about, file)

    def _leave_word(self) -> None:
        if os.getpid() != self._pid:
            return  # a fork of the script's own
        try:
            self.write_facts()
            world.mark_last_step(self._folder, self._rank, self.step)
        except FileNotFoundError:
            pass  # the command that asked for the record was interrupted, and has removed it

    def _end(self) -> None:
        """End this rank together with the others."""
        try:
            self._leave_word()
        finally:
            world.end_with_others(self._folder, dist.get_world_size() if is_joined() else 1)


def _digest(indices: list[object]) -> int:
    """Return a number of these samples of a data set, in any order."""
    return sum(zlib.crc32(repr(index).encode()) for index in indices) % records.NUM_DIGESTS


def _not_finite(tensors: list[torch.Tensor], indices: list[Any]) -> dict[str, int]:
    """Return the first row of a batch with a value that is not finite, and its sample; empty if there is none."""
    for tensor in tensors:
        if tensor.is_floating_point() and tensor.dim() and not bool(tensor.isfinite().all()):
            row = int(tensor.reshape(tensor.size(0), -1).isfinite().all(1).logical_not().nonzero()[0])
            is_known = len(indices) == tensor.size(0) and isinstance(indices[row], int)
            return {"row": row, **({"sample": indices[row]} if is_known else {})}
    return {}


def asked(environ: Mapping[str, str], *, is_main: bool) -> Record | None:
    """Return the record that the environment asks for; None where it does not."""
    order = records.read(environ)
    if order is None:
        return None
    from ..check import isolation

    isolation.switch_off()  # ranks cannot draw what one device draws
    if order.is_double:
        begin()
    rank = 0 if is_main else int(environ.get("RANK", "0"))
    record = Record(order, rank)
    _hook_prints(record)
    return record


def _hook_prints(record: Record) -> None:
    """Keep the script's prints, the number of collectives before, and whether an evaluation has just ended."""
    original = builtins.print
    record.facts["said"] = []
    pid = os.getpid()

    @functools.wraps(original)
    def say(*args: object, **kwargs: Any) -> None:
        original(*args, **kwargs)
        evaluations = record.facts.get("evaluations", [])
        said = record.facts["said"]
        if record.step and len(said) < MOST_TEXT and os.getpid() == pid and kwargs.get("file") in (None, sys.stdout):
            is_after_one = bool(evaluations) and evaluations[-1]["step"] == record.step and record.loss is None
            text = str(kwargs.get("sep") or " ").join(str(one) for one in args)
            said.append([record.step, record.meetings, text, is_after_one])
            if is_after_one:
                record.write_facts()

    patches.replace(builtins, "print", say, why="A record has what the script prints.")


def in_other_order(batch: object) -> Any:
    """Return the samples of a batch in reversed order, so that sums over them differ only by rounding."""
    if isinstance(batch, torch.Tensor):
        return batch.flip(0) if batch.dim() else batch
    if isinstance(batch, dict):
        return type(batch)((key, in_other_order(value)) for key, value in batch.items())
    if isinstance(batch, (list, tuple)) and any(isinstance(entry, torch.Tensor) for entry in batch):
        return type(batch)(in_other_order(value) for value in batch)
    return batch[::-1] if isinstance(batch, list) else batch


def begin() -> None:
    """Make new tensors float64, and give modules their float32 inputs in float64.

    A script that names float32 itself may fail of it; then `echelon prove` has no more to say than before.
    """
    torch.set_default_dtype(torch.float64)
    why = "A training whose steps rounding may have moved is compared in float64."
    patches.hook(register_module_forward_pre_hook, lambda _, inputs: tuple(map(_widened, inputs)), why=why)


def _widened(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.double() if value.dtype is torch.float32 else value
    return type(value)(map(_widened, value)) if type(value) in (tuple, list) else value


class Clock:
    """A clock that runs while the script does."""

    def __init__(self) -> None:
        self._began: float | None = None
        self._passed = 0.0
        self.steps: list[float] = []
        """The seconds of each step so far."""

    def go(self) -> None:
        self._began = time.perf_counter()

    def stop(self) -> None:
        """Stop the clock, after the device has finished its work for the script."""
        devices.synchronize_used()
        self._pause()

    def lap(self) -> None:
        self.stop()
        self.steps.append(round(self._passed, 6))
        self._passed = 0.0

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Leave the duration of a block out, without a wait for the device, which continues undisturbed."""
        was_running = self._began is not None
        self._pause()
        try:
            yield
        finally:
            if was_running:
                self.go()

    def _pause(self) -> None:
        if self._began is not None:
            self._passed += time.perf_counter() - self._began
        self._began = None
