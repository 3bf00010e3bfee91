"""Watch each step for values that are not finite, and for spikes; no step waits for the device.

Watched are each loss on which backward() is called, and each norm that clip_grad_norm_ returns: both are there anyway.
Once one is not finite, the weights are looked at too: on a CPU this is before the optimizer changes them.

A value counts when an optimizer steps with it. A script that leaves such a step out, and a GradScaler, clear the
gradients without a step, and nothing is told.
"""

import atexit
import json
import math
import os
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch

from ...pytorch import internals
from ..wire import device as devices
from .batch_origins import UNKNOWN, BatchOrigins, Origin
from .spikes import Spikes

LOSS, NORM, WEIGHTS = "loss", "norm", "weights"
NOT_FINITE, SPIKE = "not finite", "spike"
MOST_OPEN = 1024
"""The values that are kept of a script without an optimizer of PyTorch, which makes no step."""
MOST_SAMPLES = 64
MOST_SPIKES = 3
"""So many spikes of a rank are told."""
READ_SECONDS = 0.25
"""The time between two reads of a device's numbers: each is a small copy, which nobody waits for."""
END_SECONDS = 1.0
"""The time in which the end of a script waits for the numbers that are not read yet."""
_item = internals.TensorBase.item
"""Torch.Tensor.item may be replaced: a training that is saved keeps what its script reads."""


current: "ValueWatch | None" = None
"""Who watches this process; None: nobody measures it."""
_num_parts = 1


@contextmanager
def divided(num_ranks: int) -> Iterator[None]:
    """Say that backward() gets a rank's part of a sum over the ranks, and no loss whose mean over them counts."""
    global _num_parts
    _num_parts = num_ranks
    try:
        yield
    finally:
        _num_parts = 1


class _Value(NamedTuple):
    """A number of a step."""

    what: str
    number: float
    """Not a number where `tensor` has it."""
    tensor: torch.Tensor | None
    """On a device: the number, which may not be computed yet."""
    step: int
    origin: Origin
    is_scaled: bool = False
    """Whether a GradScaler has multiplied it: an infinity may be of the scale alone."""


class ValueWatch:
    """Watches the steps of this rank; `tell` gets all notes so far as text whenever there is a new one."""

    def __init__(self, tell: Callable[[str], None]) -> None:
        global current
        current = self
        self.given = BatchOrigins()
        self._tell = tell
        self._open: deque[_Value] = deque(maxlen=MOST_OPEN)
        """The values since the last step, or since gradients were cleared."""
        self._is_in_step = False
        self._scaled: tuple[object, object] = (None, None)
        self._reader = _DeviceReader(self._judge)
        self._spikes: dict[str, Spikes[_Value]] = {LOSS: Spikes(), NORM: Spikes()}
        self._notes: list[dict[str, object]] = []
        self._last: _Value | None = None
        self._stepped: weakref.ref[torch.optim.Optimizer] | None = None
        self._has_told = False
        self.newest: list[_Value] = []
        """The values of the newest step."""
        self.losses: dict[str, float] = {}
        """The measures of losses that are known by now."""
        self._summed = 0
        self.num_steps = 0
        """The steps so far, also those of an earlier process that a run continues."""
        self._pid = os.getpid()
        atexit.register(self._end)

    def continue_after(self, num_steps: int) -> None:
        """Go on after steps and passes of an earlier process."""
        self.num_steps, self.given.is_continued = num_steps, True

    def note(self, what: str, tensor: object) -> None:
        """Take a loss that goes backward, or a norm of gradients."""
        scaled, loss = self._scaled
        if what == LOSS:
            self._scaled = (None, None)
            tensor = loss if tensor is scaled else tensor
        if type(tensor) is not torch.Tensor or tensor.numel() != 1 or tensor.is_meta or not tensor.is_floating_point():
            return
        on_device = devices.is_accelerator(tensor.device)
        if on_device and devices.is_capturing():
            return
        origin = self._open[-1].origin if self._open and what == NORM else self.given.origin()
        num_parts, held, value = _num_parts if what == LOSS else 1, None, math.nan
        if on_device:
            with internals.plain_functions(), internals.without_modes(), torch.no_grad():
                held = tensor.detach().reshape(()).float() * num_parts  # a copy: a script may change its loss in place
        else:
            with internals.plain_functions():
                value = float(_item(tensor)) * num_parts
        self._open.append(
            _Value(what, value, held, self.num_steps + 1, origin, scaled is not None and tensor is not loss)
        )

    def scale(self, loss: object, scaled: object) -> None:
        """Note which loss a GradScaler has made of another: that which the script computed is watched."""
        self._scaled = scaled, loss

    def clear(self, *_: object) -> None:
        """Forget the values of a step that the script leaves out."""
        if not self._is_in_step:
            self._open.clear()

    def before_step(self, optimizer: torch.optim.Optimizer) -> None:
        """Take the values since the last step for this one."""
        self._is_in_step = True
        self._close(optimizer)

    def after_step(self, optimizer: torch.optim.Optimizer) -> None:
        """End a step; a closure may have gone backward in it."""
        self._close(optimizer, has_stepped=True)
        self._is_in_step = False
        self._stepped = weakref.ref(optimizer)
        self.num_steps += 1
        self._reader.look()

    def _close(self, optimizer: torch.optim.Optimizer, *, has_stepped: bool = False) -> None:
        """Judge the values of a step; weights that have stepped already say nothing of what they were before."""
        values = list(self._open)
        self._open.clear()
        self.newest = values or self.newest
        overflow = getattr(optimizer, "found_inf", None)  # of a GradScaler: a fused optimizer leaves such a step out
        overflow = overflow if isinstance(overflow, torch.Tensor) else None
        for value in values:
            held = value.tensor
            if overflow is not None and overflow.device != (torch.device("cpu") if held is None else held.device):
                continue  # to know whether the step is left out would wait for a device
            if held is not None:
                with internals.plain_functions(), internals.without_modes(), torch.no_grad():
                    kept = held if overflow is None else held.where(overflow == 0, 0.0)
                self._reader.put(value._replace(tensor=kept))
            elif overflow is None or not _item(overflow):
                self._judge(value, None if has_stepped else optimizer)

    def _judge(self, value: _Value, optimizer: torch.optim.Optimizer | None = None) -> None:
        if value.what == LOSS:
            self._sum(value)
        if value.what == WEIGHTS:
            if not math.isfinite(value.number) and not self._has_told and self._last is not None:
                self._add(NOT_FINITE, self._last._replace(what=WEIGHTS))
        elif math.isfinite(value.number):
            self._last = value if value.what == LOSS else self._last
            spike = self._spikes[value.what].look(value.number, value)
            if spike is not None and sum(note["kind"] == SPIKE for note in self._notes) < MOST_SPIKES:
                self._add(SPIKE, spike.about, usual=spike.usual)
        elif not self._has_told and not (value.is_scaled and math.isinf(value.number)):
            self._has_told = True
            are_finite = None if optimizer is None else _are_finite(optimizer)
            if are_finite is False and self._last is not None and self._last.step < value.step:
                self._add(NOT_FINITE, self._last._replace(what=WEIGHTS))  # this step has only met them
            else:
                known = {} if are_finite is None else {"weights": "finite" if are_finite else "not finite"}
                self._add(NOT_FINITE, value, **known)

    def _sum(self, value: _Value) -> None:
        """Add up the losses of a step; those of the newest one with finite losses are its measure."""
        is_same = value.step == self._summed
        self._summed = value.step
        loss = value.number + (self.losses.get("loss", 0.0) if is_same else 0.0)
        if math.isfinite(loss):
            self.losses["loss"] = loss
        else:
            self.losses.pop("loss", None)
            self.losses["losses_not_finite"] = self.losses.get("losses_not_finite", 0.0) + 1

    def _add(self, kind: str, value: _Value, **more: object) -> None:
        if os.getpid() != self._pid:
            return  # a fork of the rank, such as the oracle of the first step, has the page of the rank too
        origin, samples = value.origin, value.origin.samples
        bad = origin.not_finite() if kind == NOT_FINITE else None
        note = {
            "kind": kind, "what": value.what, "step": value.step, "value": f"{value.number:.4g}", **more,
            **({"pass": origin.num_pass} if origin.num_pass else {}),
            **({"samples": samples[:MOST_SAMPLES]} if samples else {}),
            **({"num_samples": len(samples)} if len(samples) > MOST_SAMPLES else {}),
            **({"bad_sample": bad} if bad is not None else {}),
        }  # fmt: skip
        self._notes.append(note)
        self._tell(json.dumps(self._notes))

    def _end(self) -> None:
        if os.getpid() == self._pid:
            self._look_at_last_weights()
            self._reader.read_all()

    def _look_at_last_weights(self) -> None:
        """Watch what the last step has left, which no loss meets any more."""
        optimizer = self._stepped() if self._stepped is not None else None
        for part in _weights(optimizer) if optimizer is not None else ():
            with internals.plain_functions(), internals.without_modes(), torch.no_grad():
                mark = torch.where(part.isfinite().all(), 0.0, math.nan)
            value = _Value(WEIGHTS, math.nan, mark, self.num_steps, UNKNOWN)
            if devices.is_accelerator(part.device):
                self._reader.put(value)
            else:
                self._judge(value._replace(number=float(_item(mark)), tensor=None))


def _weights(optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    """Return this rank's parts of an optimizer's weights."""
    with internals.plain_functions(), internals.without_modes(), torch.no_grad():
        weights = [weight for group in optimizer.param_groups for weight in group["params"]]
        parts = [getattr(weight, "to_local", lambda weight=weight: weight)().detach() for weight in weights]
        parts = [part for part in parts if type(part) is torch.Tensor]  # a pipeline has others' weights without values
        return [part for part in parts if part.is_floating_point() and not part.is_meta]


def _are_finite(optimizer: torch.optim.Optimizer) -> bool | None:
    """Say whether all weights of an optimizer are finite; None where they are not on the CPU."""
    parts = _weights(optimizer)
    if any(devices.is_accelerator(part.device) for part in parts):
        return None
    with internals.plain_functions(), internals.without_modes(), torch.no_grad():
        return all(bool(_item(part.isfinite().all())) for part in parts)


class _DeviceReader:
    """Reads numbers of a device once they are computed: several at once, in a copy that nobody waits for."""

    def __init__(self, judge: Callable[[_Value], None]) -> None:
        self._judge = judge
        self._waiting: list[_Value] = []
        self._copying: list[_Value] = []
        self._copy: object = None
        self._copied: Any = None
        self._begun_at = 0.0

    def put(self, value: _Value) -> None:
        """Take a number that the device computes."""
        self._waiting.append(value)

    def look(self) -> None:
        """Judge what was copied, and begin the next copy."""
        now = time.monotonic()
        is_due = self._waiting and now - self._begun_at >= READ_SECONDS
        if not (is_due or self._copied is not None) or devices.is_capturing():
            return
        if self._copied is not None and self._copied.query():
            self._judge_copy()
        if self._copied is None and is_due:
            self._begun_at = now
            self._begin()

    def read_all(self) -> None:
        """Wait for what is not read yet, for a moment: the script is over, or another rank never answers."""
        deadline = time.monotonic() + END_SECONDS
        try:
            while (self._copied is not None or self._waiting) and time.monotonic() < deadline:
                if self._copied is None:
                    self._begin()
                elif self._copied.query():
                    self._judge_copy()
                else:
                    time.sleep(0.005)
        except RuntimeError:
            pass  # the device has failed, which the script's own error tells

    def _begin(self) -> None:
        # an event of one device does not say that another one has computed a number
        pairs = [(value, value.tensor) for value in self._waiting if value.tensor is not None]
        device = getattr(devices.current_queue(), "device", pairs[0][1].device)
        here = [(value, tensor) for value, tensor in pairs if tensor.device == device]
        self._copying, self._waiting = [value for value, _ in here], []
        if not self._copying:
            return
        with internals.plain_functions(), internals.without_modes(), torch.no_grad():
            numbers = torch.stack([tensor for _, tensor in here])
            # the script may have chosen other defaults of type and device
            self._copy = torch.empty(len(self._copying), dtype=torch.float32, device="cpu", pin_memory=True)
            self._copy.copy_(numbers, non_blocking=True)
        self._copied = devices.event()

    def _judge_copy(self) -> None:
        copying, self._copying, self._copied = self._copying, [], None
        for value, number in zip(copying, internals.TensorBase.tolist(self._copy), strict=True):
            self._judge(value._replace(number=number))
