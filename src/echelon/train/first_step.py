"""Compare the first step with that of one device: a child of rank 0 runs the script's own step on the whole batch.

The child is forked when the first training loop begins, gets whole batches, and ends when it comes to the first
optimizer step; so what is compared with is the user's own code, not a model of it. Dropout is off during that step.
"""

import io
import math
import os
import random
import select
import signal
import struct
import sys
import time
from functools import partial, wraps
from typing import Any, Callable, Dict, Iterable, List, NamedTuple, Optional, Tuple

import torch
from torch import nn

from . import modules
from .proof.factors import meaning
from .refusal import Refusal
from .wholes import each_whole

TOLERANCE = {torch.float64: 1e-6, torch.float32: 1e-3, torch.bfloat16: 5e-2, torch.float16: 5e-2}
MOST = 1e-2  # of a gradient: BatchNorm with a rank's own statistics makes more
SHARE = 0.25  # of what one sample counts: one that is missing, or counts twice, makes a difference of four times that
NUM_ROUNDINGS = (
    64  # of the whole model's gradient: what cancels, such as that of a bias before BatchNorm, is left of these
)
NEGLIGIBLE = 1e-7  # a norm that is rounding, whatever it is a part of
LEAST_PATIENCE_SECONDS = 60.0
PATIENCE = 10.0  # times the first step of this rank, whose batch is smaller by the number of ranks
DRAWS = "random numbers are drawn for each sample, or inside of a model, which each rank does for itself"
NO_FORK = "a process that has used a GPU cannot be forked; echelon prove compares runs that begin anew"
_LENGTH = struct.Struct("<q")
_DROPOUTS = ("dropout", "alpha_dropout", "feature_alpha_dropout", "dropout1d", "dropout2d", "dropout3d")


class FirstStep:
    """The comparison, from the fork to its verdict; on ranks other than 0 it only keeps dropout off."""

    def __init__(self, *, is_main: bool, say: Callable[[str], None]) -> None:
        self._is_main = is_main
        self._say = say
        self._pid = 0
        self._pipe = -1
        self._began = 0.0
        self._undo: List[Callable[[], None]] = []
        self._num_workers = 0
        self.is_due = True
        self.is_begun = False
        self.is_oracle = False
        self.syncs_batch_norm = False
        self.compares_buffers = True
        """Whether this rank has whole models, and with them all that they remember."""
        self.keeps_dropout = False
        """Whether a run that goes on later must have the same first step; then what draws cannot be compared."""
        self.is_half = False
        """Whether something was computed under autocast."""

    def keep_dropout_off(self) -> None:
        """Leave dropout off for the whole run, which is one that is compared step by step."""
        if self.is_due:
            self.is_due = False
            self._switch_dropout_off()

    def begin(self) -> bool:
        """Fork the oracle, once; return True in it."""
        self.is_due = False
        self.is_begun = True
        if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
            if self._is_main:
                self._say("first step: not compared with one device: %s" % NO_FORK)
            return False
        if not self.keeps_dropout:
            self._switch_dropout_off()
        if not self._is_main:
            return False
        sys.stdout.flush()
        sys.stderr.flush()
        self._began = time.monotonic()
        self._pipe, writing = os.pipe()
        state = random.getstate()
        self._pid = os.fork()
        if self._pid:
            os.close(writing)
            return False
        os.close(self._pipe)
        self._pipe = writing
        self.is_oracle = True
        random.setstate(state)  # Python seeds it anew in a child
        torch.set_num_threads(1)  # the threads of the parent's pool are not here
        silence = os.open(os.devnull, os.O_WRONLY)
        os.dup2(silence, 1)
        os.dup2(silence, 2)
        sys.excepthook = lambda *_: os._exit(1)  # what ends it here ends it on rank 0 too, and is told there
        return True

    def note_workers(self, num_workers: int) -> None:
        """Remember that samples come from worker processes, of which it is not seen whether they draw."""
        self._num_workers = max(self._num_workers, num_workers)

    def before_step(self, parameters: List[nn.Parameter], *, was_drawn: bool, num_samples: int = 0) -> None:
        """Report the gradients in the oracle, which ends here; compare them on rank 0."""
        self._switch_dropout_on()
        if self.is_oracle:
            self._report(parameters, was_drawn=was_drawn)
        found = each_whole(one.grad for one in parameters if one.grad is not None)
        gradients = [None if one.grad is None else next(found) for one in parameters]
        if self._pid:
            self._compare(parameters, gradients, num_samples)

    def _report(self, parameters: List[nn.Parameter], *, was_drawn: bool) -> None:
        message = {
            "why_not": DRAWS if was_drawn else self._why_not(),
            "gradients": [None if one.grad is None else one.grad.detach().clone() for one in parameters],
            "buffers": {key: one.detach().clone() for key, (_, one) in _buffers().items()},
        }
        content = io.BytesIO()
        torch.save(message, content)
        with os.fdopen(self._pipe, "wb") as pipe:
            pipe.write(_LENGTH.pack(content.tell()) + content.getvalue())
        os._exit(0)

    def _why_not(self) -> str:
        norms = (nn.modules.batchnorm._BatchNorm,)
        if not self.syncs_batch_norm and any(isinstance(one, norms) and one.training for one in modules.living()):
            return "BatchNorm takes each rank's own statistics"
        return ""

    def _compare(
        self, parameters: List[nn.Parameter], gradients: List[Optional[torch.Tensor]], num_samples: int
    ) -> None:
        content = self._hear()
        took = time.monotonic() - self._began
        if not content:
            self._say("first step: not compared with one device: the comparison did not come to a step")
            return
        message: Dict[str, Any] = torch.load(io.BytesIO(content), weights_only=True)
        if message["why_not"]:
            self._say("first step: not compared with one device: %s" % message["why_not"])
            return
        worst = 0.0
        try:
            norm = norm_of(message["gradients"])
            for place, theirs in enumerate(message["gradients"]):
                bound = bound_of(parameters[place].dtype, num_samples, norm, is_half=self.is_half)
                worst = max(worst, difference(parameters[place], gradients[place], theirs, bound))
            if self.compares_buffers:
                _compare_buffers(message["buffers"], is_half=self.is_half)
        except Refusal as refusal:
            if not self._num_workers or refusal.factor:  # chance makes no multiples
                raise
            self._say("first step: not compared with one device: the loader's workers may draw random numbers")
            return
        self._say("first step: equals that of one device to %.0e (%.1f s)" % (worst, took))

    def _hear(self) -> bytes:
        """Return what the oracle reports; it is ended when it takes far longer than the step of this rank did."""
        deadline = time.monotonic() + max(LEAST_PATIENCE_SECONDS, PATIENCE * (time.monotonic() - self._began))
        content = bytearray()
        with os.fdopen(self._pipe, "rb", buffering=0) as pipe:
            # to the length that is told, for workers of its loaders keep the pipe open for seconds
            while len(content) < _LENGTH.size or len(content) - _LENGTH.size < _LENGTH.unpack_from(content)[0]:
                is_told = select.select([pipe], [], [], max(0.0, deadline - time.monotonic()))[0]
                data = pipe.read(1 << 20) if is_told else b""
                if not data:
                    content.clear()  # it ended, or hangs, as a child may whose parent had threads
                    break
                content += data
        os.kill(self._pid, signal.SIGKILL)
        os.waitpid(self._pid, 0)
        self._pid = 0
        return bytes(content[_LENGTH.size :])

    def _switch_dropout_off(self) -> None:
        functional = nn.functional
        for name in _DROPOUTS:
            original = getattr(functional, name)
            setattr(functional, name, _without_dropout)
            self._undo.append(partial(setattr, functional, name, original))
        attention = functional.scaled_dot_product_attention
        self._undo.append(partial(setattr, functional, "scaled_dot_product_attention", attention))
        functional.scaled_dot_product_attention = _attention_without_dropout(attention)

    def _switch_dropout_on(self) -> None:
        while self._undo:
            self._undo.pop()()


def _without_dropout(tensor: torch.Tensor, *_args: Any, **_kwargs: Any) -> torch.Tensor:
    return tensor


def _attention_without_dropout(attention: Any) -> Any:
    @wraps(attention)  # torch.compile asks functions for their names
    def compute(*args: Any, **kwargs: Any) -> Any:
        kwargs.pop("dropout_p", None)  # the fifth argument
        return attention(*args[:4], *((0.0,) if len(args) > 4 else ()), *args[5:], **kwargs)

    return compute


class Bound(NamedTuple):
    """How much a gradient may differ from that of one device."""

    relative: float
    """Of its own norm."""
    absolute: float
    """Of what is rounding in the gradient of the whole model."""
    norm: float
    """Of the gradient of the whole model."""


def norm_of(gradients: Iterable[Optional[torch.Tensor]]) -> float:
    """Return the norm of a whole model's gradient."""
    return math.sqrt(sum(float(one.double().norm()) ** 2 for one in gradients if one is not None))


def bound_of(dtype: torch.dtype, num_samples: int, norm: float, *, is_half: bool) -> Bound:
    """Return the bound for a gradient: well below what a single sample counts, and above what rounding makes.

    Where a gradient is a small difference of large numbers, as of a discriminator that cannot tell yet, rounding is a
    larger part of it; then only what a mistake makes at the least can tell the two apart.
    """
    relative = TOLERANCE[torch.bfloat16] if is_half else TOLERANCE.get(dtype, 1e-3)
    smallest = min(MOST, SHARE / num_samples) if num_samples and dtype == torch.float32 else 0.0
    relative = max(relative, smallest)
    epsilon = torch.finfo(dtype).eps if dtype.is_floating_point else 0.0
    return Bound(relative, min(NUM_ROUNDINGS * epsilon, relative / 100) * norm, norm)


def difference(
    parameter: nn.Parameter, ours: Optional[torch.Tensor], theirs: Optional[torch.Tensor], bound: Bound
) -> float:
    """Return the relative difference of a gradient; raise Refusal where it is more than rounding."""
    if ours is None or theirs is None:
        if (ours is None) != (theirs is None) and not _is_zero(ours) and not _is_zero(theirs):
            raise _wrong(parameter, "one of them has no gradient")
        return 0.0
    ours, theirs = ours.detach().double(), theirs.double()
    scale = float(theirs.norm())
    distance = float((ours - theirs).norm())
    relative = distance / scale if scale else float(distance > 0.0)
    if relative <= bound.relative:
        return relative
    if distance < max(NEGLIGIBLE, bound.absolute):
        return distance / bound.norm if bound.norm else 0.0
    factor = float((ours * theirs).sum()) / scale**2 if scale else 0.0
    if factor and float((ours - factor * theirs).norm()) <= 1e-2 * scale:
        raise _wrong(parameter, "it is %.4g times as large" % factor, factor)
    raise _wrong(parameter, "they differ by %.2g" % relative)


_Buffers = Dict[str, Tuple[str, torch.Tensor]]


def _buffers() -> _Buffers:
    """Return the buffers of models by what is the same in a child that was forked, with their names.

    BatchNorm has options of its own, and what has no parameters is computed with the whole batch.
    """
    found: _Buffers = {}
    for module in modules.living():
        if isinstance(module, nn.modules.batchnorm._NormBase):
            continue
        for name, one in module.named_buffers(recurse=False):
            if type(one) is torch.Tensor and one.layout == torch.strided and one.device.type != "meta":
                found["%d.%s" % (id(module), name)] = ("%s.%s" % (type(module).__name__, name), one)
    return found


def _compare_buffers(theirs: Dict[str, torch.Tensor], *, is_half: bool) -> None:
    """Refuse a model that has changed a buffer otherwise than with the whole batch: later steps depend on it."""
    for key, (name, one) in _buffers().items():
        other = theirs.get(key)
        if other is None or other.dtype != one.dtype or other.numel() == 0:
            continue
        tolerance = TOLERANCE[torch.bfloat16] if is_half else TOLERANCE.get(one.dtype, 1e-3)
        is_same = other.shape == one.shape
        if is_same:
            mine, whole = torch.view_as_real(one) if one.is_complex() else one, other
            whole = torch.view_as_real(whole) if whole.is_complex() else whole
            mine, whole = (part.detach().double().nan_to_num() for part in (mine, whole))
            is_same = float((mine - whole).norm()) <= max(tolerance * float(whole.norm()), NEGLIGIBLE)
        if not is_same:
            raise Refusal(
                "the first step is not that of one device: the model changes its buffer %s with the samples that it "
                "gets, and each rank has its own" % name,
                "change it outside of the model, where a batch is whole, or one rank: echelon run -n 1 …",
            )


def _wrong(parameter: nn.Parameter, how: str, factor: float = 0.0) -> Refusal:
    cause = meaning(factor, int(os.environ.get("WORLD_SIZE", "1")))
    return Refusal(
        "the first step is not that of one device: of %s, compared with the gradient of the whole batch, %s; %s"
        % (_name(parameter), how, cause),
        "let the loss be the mean over the batch that the loader gives, or start one rank: echelon run -n 1 …",
        factor=factor,
    )


def _name(parameter: nn.Parameter) -> str:
    """Return a parameter's name in the outermost module, which is the one of the most parts."""
    names = [
        "%s.%s" % (type(module).__name__, name)
        for module in modules.living()
        if not isinstance(module, nn.ParameterList)
        for name, one in module.named_parameters()
        if one is parameter and "parameters_of_optimizers" not in name  # not our own wrapper
    ]
    return max(names, key=lambda name: name.count("."), default="a parameter of shape %s" % (tuple(parameter.shape),))


def _is_zero(gradient: Optional[torch.Tensor]) -> bool:
    return gradient is None or not bool(gradient.any())
