"""The course of a rehearsed run: its steps are recorded, its fault happens once, and its end is compared."""

import atexit
import json
import os
import threading
import time
import weakref
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch

from ...checkpoint import safetensors
from ...checkpoint.store import has_checkpoint
from ...orders import checkpoint, rehearsal
from ...orders.checkpoint import is_restarted
from ...orders.rehearsal import ERROR, SIGNAL, Fault, Rehearsal
from .. import events
from ..recording.steps import nudge, trained_by
from ..replay.state import is_weight, of_optimizers
from . import faults, step_look

_open, _rename = open, os.rename  # before they are hooked: ranks share the files of a script, and these are of one rank
_PATIENCE_SECONDS = 20.0
"""How long a fault waits for the first checkpoint: steps may be shorter than a save."""


class _Held(NamedTuple):
    """What an optimizer has; the optimizer itself may end earlier, as without us."""

    owner: "weakref.ref[torch.optim.Optimizer]"
    param_groups: list[dict[str, object]]
    state: Mapping[torch.Tensor, dict[str, object]]


class RehearsedRun:
    """What one rank does for a rehearsal; every call is for the process of the training alone."""

    def __init__(self, order: Rehearsal, rank: int, *, needs_checkpoint: bool) -> None:
        self._order = order
        self._rank = rank
        self._needs_checkpoint = needs_checkpoint
        self._held: list[_Held] = []
        self._strikes: list[threading.Thread] = []
        self._is_over = False
        self._stepped_at = 0.0
        self._patience: float | None = None  # until when the fault waits; it waits once, not at each step
        if os.path.exists(_fault_file(order)) if order.folder else is_restarted(os.environ):
            self._order = order._replace(fault=None)
        if order.is_nudged:
            events.before_step.listen(
                "nudge", lambda optimizer: nudge(trained_by(optimizer)), why="A rehearsal measures rounding."
            )
        if order.scratch:
            faults.install(order.scratch, order.original)

    def stepped(self, optimizer: torch.optim.Optimizer, step: int, checkpoints: str = "") -> None:
        """Record a step that was computed, and let the fault happen if it is due; `checkpoints` is their folder."""
        if all(optimizer is not held.owner() for held in self._held):
            living = [held for held in self._held if held.owner() is not None]
            self._held = [*living, _Held(weakref.ref(optimizer), optimizer.param_groups, optimizer.state)]
        if self._order.folder and self._rank == 0:
            line = {"step": step, "time": time.time(), "pid": os.getpid()}
            with _open(os.path.join(self._order.folder, rehearsal.STEPS_FILE), "a") as file:
                file.write(json.dumps(line) + "\n")
        fault = self._order.fault
        if self._order.pace:
            time.sleep(max(0.0, self._stepped_at + self._order.pace - time.monotonic()))
            self._stepped_at = time.monotonic()
        if fault is None or step < fault.step or not (self._rank == fault.rank or faults.concerns_all(fault.kind)):
            return
        needs_checkpoint = self._needs_checkpoint and fault.kind != SIGNAL
        if needs_checkpoint and not self._waits_for_checkpoint(checkpoints):
            return
        if self._is_first(fault, step):
            self._strike(fault, checkpoints)

    def ends_at(self, step: int) -> bool:
        """Say whether all ranks end after this step; after a signal they end when they have carried out the order."""
        is_warned = self._order.fault is not None and self._order.fault.kind == SIGNAL
        return 0 < self._order.steps <= step and not is_warned

    def finish_at_exit(self) -> None:
        """Do as `finish`, for a script that ends by itself, with this rank's part: other ranks may be gone.

        Its objects may be gone too; what optimizers had is held.
        """
        if self._held:
            self.finish(of_optimizers(self._held, set()), _part_of)

    def finish(self, tensors: Mapping[str, torch.Tensor], value: Callable[[torch.Tensor], torch.Tensor]) -> None:
        """Write the state at the end of the undisturbed run, or compare with it; rank 0 speaks for all.

        `value` returns the whole of a tensor, and all ranks call it; or it returns the part of this rank.
        """
        for thread in self._strikes:
            thread.join()  # the run must not end before the fault happens
        if self._is_over or not self._order.folder:
            return
        self._is_over = True
        here = {}
        for name, tensor in tensors.items():
            shown = value(tensor)
            if self._rank == 0:
                here[name] = shown.detach().cpu()
        if self._rank == 0:
            self._tell_end(here)

    def _tell_end(self, here: Mapping[str, torch.Tensor]) -> None:
        if not self._order.like:
            safetensors.write(os.path.join(self._order.folder, rehearsal.STATE_FILE), here)
        told = compare(safetensors.read(self._order.like), here) if self._order.like else {}
        path = os.path.join(self._order.folder, rehearsal.END_FILE)
        with _open(path + ".part", "w") as file:
            json.dump(told, file)
        _rename(path + ".part", path)

    def _waits_for_checkpoint(self, folder: str) -> bool:
        """Say whether there is a checkpoint to go back to; steps may be shorter than a save, so wait for the first."""
        if self._patience is None:
            self._patience = time.monotonic() + _PATIENCE_SECONDS
        while not has_checkpoint(folder):
            if time.monotonic() >= self._patience:
                return False
            time.sleep(0.01)
        return True

    def _strike(self, fault: Fault, checkpoints: str) -> None:
        """Let the fault happen; in a thread, because ranks share what the script's own thread does to files."""
        if fault.kind == ERROR:
            faults.strike(fault.kind, checkpoints)
        thread = threading.Timer(fault.delay, faults.strike, (fault.kind, checkpoints))
        thread.start()
        self._strikes.append(thread)
        if not fault.delay:
            thread.join()

    def _is_first(self, fault: Fault, step: int) -> bool:
        """Say whether the fault has not happened yet, and note that it happens now."""
        if fault.kind != SIGNAL:
            self._order = self._order._replace(fault=None)
        if not self._order.folder:
            return True
        try:
            with _open(_fault_file(self._order), "x") as file:
                json.dump({**fault._asdict(), "struck_at": step, "time": time.time()}, file)
        except FileExistsError:
            return faults.concerns_all(fault.kind)
        return True


def _fault_file(order: Rehearsal) -> str:
    return os.path.join(order.folder, rehearsal.FAULT_FILE)


def asked(environ: Mapping[str, str], *, needs_checkpoint: bool) -> RehearsedRun | None:
    """Return the course that the environment asks for; None where nothing is rehearsed."""
    order = rehearsal.read(environ)
    if order is not None and order.step:
        return None  # step_look looks at one step
    return RehearsedRun(order, int(environ.get("RANK", "0")), needs_checkpoint=needs_checkpoint) if order else None


def compare(before: Mapping[str, torch.Tensor], here: Mapping[str, torch.Tensor]) -> dict[str, object]:
    """Return whether two states have the same bits, and the largest relative differences with the tensor's name.

    "difference" is that of all tensors, and "weights" that of all but the states of optimizers.

    >>> compare({"w": torch.ones(2)}, {"w": torch.tensor([1.0, 1.5])})["difference"]
    0.5
    """
    told: dict[str, Any] = {"is_same": True, "difference": 0.0, "weights": 0.0, "tensor": "", "lacks": ""}
    for name in sorted({*before, *here}):
        if name not in before or name not in here or before[name].shape != here[name].shape:
            return {**told, "is_same": False, "lacks": name}
        expected, present = before[name].contiguous(), here[name].contiguous()
        if torch.equal(expected.reshape(-1).view(torch.uint8), present.reshape(-1).view(torch.uint8)):
            continue
        difference = _difference(expected, present)
        told["is_same"] = False
        if is_weight(name):
            told["weights"] = max(told["weights"], difference)
        if difference >= told["difference"]:
            told.update(difference=difference, tensor=name)
    return told


def _difference(expected: torch.Tensor, present: torch.Tensor) -> float:
    wide = torch.complex128 if expected.is_complex() else torch.float64
    here, there = expected.to(wide), present.to(wide)
    scale = float(here.abs().max().clamp(min=1e-30))
    worst = float((here - there).abs().max()) / scale
    return worst if worst == worst else float("inf")


def _part_of(tensor: torch.Tensor) -> torch.Tensor:
    to_local = getattr(tensor, "to_local", None)
    return tensor if to_local is None else to_local()


def begin(environ: Mapping[str, str]) -> None:
    step_look.begin(environ)
    course = asked(environ, needs_checkpoint=checkpoint.VARIABLE in environ)
    if course is None:
        return
    order = checkpoint.read(environ)
    checkpoints = order.folder if order is not None else ""
    num_steps = 0
    pid = os.getpid()

    def after(optimizer: torch.optim.Optimizer) -> None:
        nonlocal num_steps
        if os.getpid() == pid:  # and no fork of the script's own
            num_steps += 1
            course.stepped(optimizer, num_steps, checkpoints)

    def end() -> None:
        if os.getpid() == pid:
            course.finish_at_exit()

    events.after_step.listen("rehearsal", after, why="A rehearsal counts steps.")
    atexit.register(end)
