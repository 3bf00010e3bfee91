"""What a repeated loop leaves out: inputs and outputs of models have no values, and nothing is trained or clipped.

Of gradient scalers the journal keeps which steps overflowed, and the scale.
"""

import sys
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from functools import wraps
from typing import Any, NamedTuple

import torch
from torch import nn

from ...pytorch import internals
from .. import events, patches
from ..global_tensors.tensors import map_tensors, tensors_of
from ..patches import Hooks
from ..scaling_error import ScalingError
from .hollow import hollow, is_hollow, of_shape
from .reads import reading
from .tape import CALL, CLOSURE, HOOK, OFF, RECORD, STEPPED, Journal, is_ours

_WHY_OUTPUT = "A repeated loop prints and logs nothing a second time."


class _Muted:
    """A stream that drops what is written while a loop is repeated."""

    def __init__(self, stream: Any, tape: Journal) -> None:
        self._stream = stream
        self._tape = tape

    def write(self, text: Any) -> int:
        return len(text) if self._tape.is_playing else int(self._stream.write(text))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def mute_streams(tape: Journal) -> None:
    for name in ("stdout", "stderr"):
        patches.replace(sys, name, _Muted(getattr(sys, name), tape), why=_WHY_OUTPUT)
    original = sys.excepthook

    def tell(kind: Any, error: Any, trace: Any) -> None:
        if tape.is_playing and issubclass(kind, Exception) and not issubclass(kind, ScalingError):
            error = ScalingError(
                f"{kind.__name__}: {error}: it came while the loop was repeated without computing, where models, data "
                "sets and optimizers do not change what they keep",
                "let the loop keep in a variable of its own what it reads from them; or start it without --resume",
            )
            kind = ScalingError
        tape.phase = OFF
        original(kind, error, trace)

    patches.replace(sys, "excepthook", tell, why="An error in a repeated loop is told.")


def mute_loggers(tape: Journal) -> None:
    """Let TensorBoard, wandb and MLflow log nothing while a loop is repeated, nor add to the journal before."""
    hooks = Hooks()

    def mute(owner: object, names: Iterable[str]) -> None:
        for name in names:
            original = getattr(owner, name, None)
            if callable(original):
                patches.replace(owner, name, tape.left_out(original), why=_WHY_OUTPUT)

    def starting(owner: object, start: str) -> list[str]:
        return [name for name in dir(owner) if name.startswith(start)]

    for module in ("torch.utils.tensorboard.writer", "tensorboardX.writer"):
        hooks.when_imported(
            module, lambda one: mute(one.SummaryWriter, starting(one.SummaryWriter, "add_")), why=_WHY_OUTPUT
        )
    hooks.when_imported("wandb.sdk.wandb_run", lambda one: mute(one.Run, ("log",)), why=_WHY_OUTPUT)
    hooks.when_imported("mlflow", lambda one: mute(one, starting(one, "log_")), why=_WHY_OUTPUT)
    hooks.apply()


_WHY_BACKWARD_HOOKS = "What a script's hooks of backward() do is repeated with the loop."
_IN_PLACE = "the owner"
_NAMES: tuple[tuple[Any, str], ...] = (
    (torch.Tensor, "register_hook"),
    (torch.Tensor, "register_post_accumulate_grad_hook"),
    (nn.Module, "register_full_backward_hook"),
    (nn.Module, "register_full_backward_pre_hook"),
)


class BackwardHooks:
    """The hooks of a script, in the order in which it registers them."""

    def __init__(self, tape: Journal) -> None:
        self._tape = tape
        self._calls: list[tuple[Any, Callable[..., Any]]] = []

    def install(self) -> None:
        for owner, name in _NAMES:
            patches.replace(owner, name, self._registering(getattr(owner, name)), why=_WHY_BACKWARD_HOOKS)

    @property
    def number(self) -> int:
        return len(self._calls)

    def play(self) -> None:
        while self._tape.next_kind() == HOOK:
            number, entry = self._tape.play(HOOK)
            owner, hook = self._calls[number]
            hook(*(owner if word == _IN_PLACE else word for word in self._tape.forms.hollow(entry)))

    def _registering(self, register: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(register)
        def note(owner: Any, hook: Any, *args: object, **kwargs: object) -> Any:
            if is_ours(1) or not self._tape.is_here:
                return register(owner, hook, *args, **kwargs)
            self._calls.append((owner, hook))
            return register(owner, self._recording(owner, hook, len(self._calls) - 1), *args, **kwargs)

        return note

    def _recording(self, owner: object, hook: Callable[..., Any], number: int) -> Callable[..., Any]:
        @wraps(hook)
        def call(*args: object) -> Any:
            tape = self._tape
            if tape.phase != RECORD or not tape.is_mine:
                return hook(*args)
            words = [_IN_PLACE if word is owner else word for word in args]
            with tape.resumed():
                tape.keep(HOOK, [number, tape.forms.note(words)])
                return hook(*args)

        call.is_of_script = True  # type: ignore[attr-defined]  # gradient_hooks.py waits with it
        return call


_WHY = "A script that continues from a checkpoint repeats a loop without computing if its variables cannot be put back."
_during = ExitStack()
"""What is replaced only while the loop is repeated."""
_stepping: set[int] = set()
"""The ids of the optimizers that step now."""
OnStep = Callable[[torch.optim.Optimizer], None]


class StepListener(NamedTuple):
    stepped: OnStep
    """Is called after each step of an optimizer."""
    updated: Callable[[], None]
    """Is called after each update of a gradient scaler."""
    went_back: Callable[[], None]
    """Is called after each backward pass that is computed."""


def install(
    tape: Journal, optimizers: Callable[[], list[torch.optim.Optimizer]], hooks: BackwardHooks, steps: StepListener
) -> None:
    _hook_models(tape)
    _hook_backward(tape, optimizers, hooks, steps.went_back)
    _hook_clipping(tape)
    _hook_scaler(tape, steps.updated)
    _hook_compile(tape)
    events.made.listen("journal", lambda optimizer: _hook_step(type(optimizer), tape, steps.stepped), why=_WHY)


def _hook_models(tape: Journal) -> None:
    """Keep the forms of what modules return, and return these forms; inside of a module nothing is computed or kept."""
    original = nn.Module.__call__

    def call(self: nn.Module, *args: object, **kwargs: object) -> Any:
        if tape.phase == OFF or not tape.is_here or is_ours(1) or internals.is_traced():
            return original(self, *args, **kwargs)
        if internals.is_transformed():
            raise ScalingError(
                f"--checkpoint-every cannot repeat a call of {type(self).__name__} inside of torch.func's vmap, grad, "
                "jacrev or hessian",
                "save with torch.save(), and start without --checkpoint-every",
            )
        return tape.formed(CALL, lambda: original(self, *args, **kwargs), f"what {type(self).__name__} returns")

    patches.replace(nn.Module, "__call__", call, why=_WHY)


def _hook_step(kind: Any, tape: Journal, stepped: OnStep) -> None:
    if getattr(kind.step, "is_of_replay", False):
        return
    original = kind.step

    @wraps(original)
    def step(self: Any, closure: Any = None, *args: object, **kwargs: object) -> Any:
        if tape.is_playing:
            loss = None
            while tape.next_kind() == CLOSURE:
                tape.play(CLOSURE)
                loss = closure()
        else:
            words = (_taken_in(closure, tape), *args) if closure is not None or args else ()
            if id(self) in _stepping:  # a step of the class that this one is made of
                return original(self, *words, **kwargs)
            _stepping.add(id(self))
            try:
                with tape.paused():
                    loss = original(self, *words, **kwargs)
            finally:
                _stepping.discard(id(self))
        stepped(self)
        return loss

    step.is_of_replay = True  # type: ignore[attr-defined]
    patches.replace(kind, "step", step, why=_WHY)


def _taken_in(closure: object, tape: Journal) -> Any:
    """Return a closure whose calls are kept: an optimizer may call it as often as it likes."""
    if not callable(closure) or not tape.is_recording:
        return closure

    @wraps(closure)
    def call() -> Any:
        with tape.resumed():
            tape.keep(CLOSURE, None)
            return closure()

    return call


def _hook_backward(
    tape: Journal,
    optimizers: Callable[[], list[torch.optim.Optimizer]],
    hooks: BackwardHooks,
    went_back: Callable[[], None],
) -> None:
    def wrapped(original: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(original)
        def backward(*args: object, **kwargs: object) -> None:
            if tape.is_playing:
                _give_gradients(optimizers())
                _give_to_leaves()
                hooks.play()
                return
            with tape.paused():
                original(*args, **kwargs)
            went_back()

        return backward

    def differentiate(_outputs: object, inputs: Any, *_: object, **__: object) -> Any:
        hooks.play()
        return tuple(hollow(one) for one in tensors_of(inputs))

    patches.replace(torch.Tensor, "backward", wrapped(torch.Tensor.backward), why=_WHY)
    patches.replace(torch.autograd, "backward", wrapped(torch.autograd.backward), why=_WHY)
    patches.replace(torch.autograd, "grad", tape.left_out(torch.autograd.grad, differentiate), why=_WHY)


def _give_gradients(optimizers: list[torch.optim.Optimizer]) -> None:
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                if parameter.requires_grad and parameter.grad is None:
                    parameter.grad = hollow(parameter)


def _give_to_leaves() -> None:
    if patches.is_replaced(torch.Tensor, "grad"):
        return
    base: Any = vars(internals.TensorBase)["grad"]

    def get(self: torch.Tensor) -> Any:
        if base.__get__(self) is None and self.requires_grad and self.is_leaf and not isinstance(self, nn.Parameter):
            base.__set__(self, hollow(self))
        return base.__get__(self)

    _during.enter_context(
        patches.replaced(torch.Tensor, "grad", property(get, base.__set__, base.__delete__), why=_WHY)
    )


def leave() -> None:
    """End the repetition: gradients are PyTorch's own again."""
    _during.close()


def _hook_clipping(tape: Journal) -> None:
    norm = tape.left_out(nn.utils.clip_grad_norm_, lambda *_, **__: of_shape((), torch.float32, "cpu"))
    for clip in (norm, tape.left_out(nn.utils.clip_grad_value_)):
        for owner in (nn.utils, nn.utils.clip_grad):
            patches.replace(owner, clip.__name__, clip, why=_WHY)


_WHY_SCALER = "A gradient scaler leaves out steps whose gradients overflow; a repeated loop leaves out the same steps."


def _hook_scaler(tape: Journal, updated: Callable[[], None]) -> None:
    kind: Any = torch.amp.GradScaler
    scale, step, update = kind.scale, kind.step, tape.left_out(kind.update)

    @wraps(scale)
    def scale_or_not(self: object, outputs: object) -> Any:
        return outputs if tape.is_playing else scale(self, outputs)

    @wraps(step)
    def step_or_not(self: Any, optimizer: torch.optim.Optimizer, *args: Any, **kwargs: Any) -> Any:
        if not self.is_enabled():
            return step(self, optimizer, *args, **kwargs)
        tape.is_scaling = True
        try:
            if tape.is_playing:
                return optimizer.step(*args, **kwargs) if tape.play(STEPPED) else None
            taken: list[bool] = []
            with tape.paused(), optimizer.register_step_pre_hook(lambda *_: taken.append(True)):
                result = step(self, optimizer, *args, **kwargs)
            if tape.is_recording:
                tape.keep(STEPPED, bool(taken))
            return result
        finally:
            tape.is_scaling = False

    @wraps(update)
    def end_step(self: object, *args: object, **kwargs: object) -> Any:
        result = update(self, *args, **kwargs)
        updated()
        return result

    replacements = {
        "scale": scale_or_not,
        "step": step_or_not,
        "update": end_step,
        "get_scale": reading(tape, "get_scale", kind.get_scale),
        "unscale_": tape.left_out(kind.unscale_),
    }
    for name, new in replacements.items():
        patches.replace(kind, name, new, why=_WHY_SCALER)


def hook_factories(tape: Journal) -> None:
    """Let torch.tensor and torch.as_tensor take hollow tensors: PyTorch would read their memory."""
    for name in ("tensor", "as_tensor"):
        original = getattr(torch, name)

        def make(data: Any, *args: Any, _original: Any = original, **kwargs: object) -> Any:
            if not tape.is_playing or not any(map(is_hollow, tensors_of(data))):
                return _original(data, *args, **kwargs)
            if is_hollow(data):
                return data.detach().clone()
            return hollow(
                _original(map_tensors(data, lambda one: 0.0 if one.is_floating_point() else 0), *args, **kwargs)
            )

        patches.replace(torch, name, wraps(original)(make), why=_WHY)


def _hook_compile(tape: Journal) -> None:
    """Let compiled functions be left out as models are; a compiled module is a module."""

    def left_out(compiled: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(compiled)
        def call(*args: object, **kwargs: object) -> Any:
            return tape.formed(CALL, lambda: compiled(*args, **kwargs), "what a compiled function returns")

        return call

    original = torch.compile

    def compile_(model: Any = None, *args: Any, **kwargs: Any) -> Any:
        compiled = original(model, *args, **kwargs)
        return compiled if model is None or isinstance(model, nn.Module) else left_out(compiled)

    patches.replace(torch, "compile", wraps(original)(compile_), why=_WHY)
    script = torch.jit.script

    def compile_script(*args: Any, **kwargs: Any) -> Any:
        with patches.set_aside(patches.of(torch)):
            return script(*args, **internals.one_frame_up(kwargs))

    patches.replace(torch.jit, "script", compile_script, why="TorchScript compiles calls of PyTorch's own functions.")
    kind = torch.jit.ScriptFunction
    patches.replace(kind, "__call__", left_out(kind.__call__), why=_WHY)
