"""The automatic form: PyTorch's functions call a Run, so that a script for one device needs no change."""

import sys
from collections.abc import Callable
from functools import wraps
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, SequentialSampler

from ..pytorch import internals
from ..pytorch import modules as torch_modules
from . import batch_norm, events, patches
from .function_types import Function
from .global_tensors import derivatives, rules
from .global_tensors.tensors import GlobalTensor, plain
from .local_sgd import hooks as local_hooks
from .rng import draw_hooks as draws
from .run import Run
from .scaling_error import ScalingError
from .wire import gather
from .wire import world as worlds

_LEARNING_RATES = {"": 0.0, "sqrt": 0.5, "linear": 1.0}
"""The power of the number of batches per step that multiplies a learning rate."""
_LOOKERS = (
    ("torch.jit", ("trace", "trace_module", "script")),
    (torch_modules.TRACERS[0], ("trace", "trace_module")),
    ("torch.fx", ("symbolic_trace",)),
    (torch_modules.TRACERS[1], ("symbolic_trace",)),
    ("torch.onnx", ("export",)),
    ("torch.export", ("export",)),
)
"""Tools that call a model to trace or to export it."""


def install(run: Run) -> None:
    """Hook the functions that single-device scripts use; an explicit form needs only the hooks before the condition."""
    rules.install()
    _hook_backward(run)
    run.parallelism.observers.install()
    run.late_hooks.install()
    _hook_calls(run)
    if run.draws.is_on:
        draws.install(run.draws)
    derivatives.install(run)
    run.listen()
    _hook_readers_of_gradients(run)
    if not run.is_hooked:
        run.parallelism.install(run)
    if run.is_hooked:
        patches.replace(
            DataLoader, "__iter__", lambda self: run.begin(self), why="Each rank loads its rows of a batch."
        )
        _follow_optimizers(run)
        _hook_modes(run)
        _hook_lookers(run)
        _hook_losses_that_are_read(run)
        _hook_own_distribution(run)
        _hook_autocast(run)
        run.parallelism.install(run)
        if run.options.syncs_batch_norm and run.world.size > 1:
            batch_norm.install(run)
        elif run.world.size > 1 and not run.options.checks_first_step:
            batch_norm.watch(run, run.say)
        if run.batches_per_step > 1:
            _hook_lengths(run)


def _hook_backward(run: Run) -> None:
    """Let loss.backward() and torch.autograd.backward() compute the whole batch's gradients; one may call the other."""
    original, engine = torch.Tensor.backward, torch.autograd.backward
    within: list[bool] = []

    def enter(loss: torch.Tensor, run_backward: Callable[[torch.Tensor], None]) -> None:
        within.append(True)
        try:
            run.backward(loss, run_backward)
        finally:
            within.pop()

    def backward(self: torch.Tensor, *args: object, **kwargs: object) -> None:
        if within or run.calls.is_inside:
            run.trials.at_backward(self)
            original(self, *args, **kwargs)  # type: ignore[no-untyped-call]
            return
        if args or kwargs.keys() - {"retain_graph"}:
            run.parallelism.observers.note()
        enter(self, lambda loss: original(loss, *args, **kwargs))  # type: ignore[no-untyped-call]

    def backward_of_several(tensors: list[torch.Tensor], grad_tensors: Any = None, *args: Any, **kwargs: Any) -> None:
        if within or run.calls.is_inside or not (run.has_begun or run.world.is_alone):
            if run.trials.is_open:
                run.trials.at_backward(_weighted_sum(tensors, grad_tensors))
            engine(tensors, grad_tensors, *args, **kwargs)
            return
        if run.world.is_alone:
            with run.late_hooks.around_backward(run.parallelism):
                engine(tensors, grad_tensors, *args, **kwargs)
            return
        run.parallelism.observers.note()
        enter(_weighted_sum(tensors, grad_tensors), lambda loss: engine(loss, None, *args, **kwargs))

    why = "The gradients of a loss are those of the whole batch."
    patches.replace(torch.Tensor, "backward", backward, why=why)
    patches.replace(torch.autograd, "backward", backward_of_several, why=why)


def _weighted_sum(tensors: Any, weights: Any) -> torch.Tensor:
    several = [tensors] if isinstance(tensors, torch.Tensor) else list(tensors)
    factors = [weights] * len(several) if weights is None or isinstance(weights, torch.Tensor) else list(weights)
    terms = [one if weight is None else (one * weight).sum() for one, weight in zip(several, factors, strict=False)]
    loss = terms[0]
    for term in terms[1:]:
        loss = loss + term
    return loss


def _hook_calls(run: Run) -> None:
    """Let each rank compute its part of a batch in models; a compiled model calls its modules without this hook."""
    original, compiles = nn.Module.__call__, torch.compile

    def call(self: nn.Module, *args: object, **kwargs: object) -> Any:
        if run.calls.is_idle or worlds.is_alone():
            if not run.calls.is_compiled:
                return original(self, *args, **kwargs)
            with run.calls.unhooked():
                return original(self, *args, **kwargs)
        return run.calls.call(original, self, args, kwargs)

    def compile_(model: Any = None, *args: object, **kwargs: Any) -> Any:
        if model is None:
            return lambda one: compile_(one, *args, **kwargs)
        run.calls.is_compiled = True
        run.draws.stop("models, because torch.compile has compiled the functions that draw them")
        leave()  # the module is compiled, without the hook of its call
        try:
            with run.draws.put_back():
                return compiles(model, *args, **kwargs)
        finally:
            enter()

    calls = patches.replace(
        nn.Module, "__call__", call, why="A model gets the rows of a batch that this rank computes."
    )
    leave, enter = run.calls.leave_hooks, run.calls.enter_hooks = calls.toggles()
    patches.replace(
        torch, "compile", compile_, why="What is compiled is the model alone, without the hooks of echelon."
    )


def _hook_readers_of_gradients(run: Run) -> None:
    def wrapped(original: Function) -> Function:
        def reads(*args: object, **kwargs: object) -> Any:
            run.parallelism.reduce()
            return gather.whole(original(*args, **kwargs))

        return reads

    def clips(original: Function) -> Function:
        read = wrapped(original)

        def clip(parameters: Any, *args: object, **kwargs: object) -> Any:
            weights = [parameters] if isinstance(parameters, torch.Tensor) else list(parameters)
            return read([run.parallelism.current_parameter(one) for one in weights], *args, **kwargs)

        return clip

    def clip_norm(*args: object, **kwargs: object) -> Any:
        norm = run.parallelism.clip_grad_norm()(*args, **kwargs)
        events.clipped(norm)
        return norm

    for name, clipping in (("clip_grad_norm_", clip_norm), ("clip_grad_value_", nn.utils.clip_grad_value_)):
        function = wraps(getattr(nn.utils, name))(clips(clipping))
        for owner in (nn.utils, nn.utils.clip_grad):
            patches.replace(owner, name, function, why="Gradients are clipped when they are those of the whole batch.")
    unscale = wrapped(torch.amp.GradScaler.unscale_)
    patches.replace(
        torch.amp.GradScaler, "unscale_", unscale, why="Overflows are looked for in the gradients of all ranks."
    )


def _follow_optimizers(run: Run) -> None:
    why = "Gradients that were set to zero are not exchanged."
    events.cleared.listen("parallelism", lambda _: run.parallelism.note_zero(), why=why)

    def add(optimizer: torch.optim.Optimizer) -> None:
        _scale_learning_rate(optimizer, run)
        run.parallelism.add(optimizer)

    why = "The weights of an optimizer are those whose gradients the ranks exchange."
    events.made.listen("parallelism", add, why=why)


def _scale_learning_rate(optimizer: torch.optim.Optimizer, run: Run) -> None:
    """Scale the learning rate for a larger global batch, as the options say, before a scheduler sees it."""
    factor = run.batches_per_step ** _LEARNING_RATES[run.options.learning_rate]
    for group in optimizer.param_groups if factor != 1 else ():
        group["lr"] = group["lr"] * factor


def _hook_lengths(run: Run) -> None:
    """Let a loader that shuffles, and so feeds training, have as many batches as there are steps."""
    original = DataLoader.__len__

    def length(self: "DataLoader[object]") -> int:
        num_batches = original(self)
        return num_batches if isinstance(self.sampler, SequentialSampler) else -(-num_batches // run.batches_per_step)

    patches.replace(DataLoader, "__len__", length, why="With --per-device-batch an epoch has fewer steps.")


def _hook_modes(run: Run) -> None:
    """Notice when a trained model switches to eval(); only the outermost of nested calls counts."""
    original = nn.Module.train
    depth = [0]

    def train(self: nn.Module, mode: bool = True) -> nn.Module:
        depth[0] += 1
        try:
            result = original(self, mode)
        finally:
            depth[0] -= 1
        if run.calls.is_idle or worlds.is_alone():
            return result
        if depth[0] == 0 and not mode and run.is_at_home and not local_hooks.is_layer(self):
            run.parallelism.sync_weights(self)
        if depth[0] == 0 and not mode and _is_trained(self, run):
            _share_buffers(self, run)
        return result

    patches.replace(nn.Module, "train", train, why="A model that begins to evaluate has the same buffers on all ranks.")


def _is_trained(module: nn.Module, run: Run) -> bool:
    trained = {id(parameter) for parameter in run.parallelism.parameters()}
    return any(id(parameter) in trained for parameter in module.parameters())


def _share_buffers(module: nn.Module, run: Run) -> None:
    """Give all ranks rank 0's buffers (running means of BatchNorm) before they are used, as DDP does."""
    if run.world.size > 1 and torch.distributed.is_initialized():
        for buffer in module.buffers():
            torch.distributed.broadcast(buffer, 0)


def _hook_lookers(run: Run) -> None:
    """Show the model of one device to tools that call it: whole tensors, and modules without the hooks of calls."""

    def looking(original: Callable[..., object], name: str) -> Callable[..., object]:
        @wraps(original)
        def look(*args: object, **kwargs: object) -> object:
            model = args[0] if args else next(iter(kwargs.values()), None)
            if isinstance(model, nn.Module) and not worlds.is_alone() and _is_trained(model, run):
                _share_buffers(model, run)
            if name == "script":
                kwargs = internals.one_frame_up(kwargs)
            with run.calls.idle():
                return original(*plain(args), **plain(kwargs))

        return look

    for name, functions in _LOOKERS:
        module = sys.modules.get(name)
        for function in functions if module is not None else ():
            original = getattr(module, function, None)
            if original is not None:
                why = "A trace or an export sees the model of one device."
                patches.replace(module, function, looking(original, function), why=why)


def _hook_losses_that_are_read(run: Run) -> None:
    """Let item(), float() and formatting of a loss give its global value, so that all ranks take equal decisions."""

    def wrapped(original: Callable[..., object]) -> Function:
        @wraps(original)  # global tensors know functions by their names
        def read(self: torch.Tensor, *args: object) -> Any:
            if _is_local_loss(self, run):
                return original(worlds.mean(run.world, self, run.weight), *args)
            return original(self, *args)

        return read

    for name in ("item", "__float__", "__format__", "tolist"):
        read = wrapped(getattr(torch.Tensor, name))
        patches.replace(torch.Tensor, name, read, why="A loss that is read is the mean over all ranks.")


def _is_local_loss(tensor: torch.Tensor, run: Run) -> bool:
    return (
        run.world.size > 1
        and not run.world.is_exact
        and run.has_begun
        and not isinstance(tensor, GlobalTensor)
        and tensor.requires_grad
        and tensor.grad_fn is not None
        and tensor.numel() == 1
        and torch.distributed.is_initialized()
    )


def _hook_autocast(run: Run) -> None:
    """Notice autocast, because gradients in half precision agree to fewer digits."""
    original: Function = torch.autocast.__enter__

    def enter(self: object) -> Any:
        run.first_step.is_half = True
        return original(self)

    patches.replace(
        torch.autocast, "__enter__", enter, why="In half precision gradients are compared with fewer digits."
    )


def _hook_own_distribution(run: Run) -> None:
    """Refuse to scale a script that distributes itself, because its work would be shared twice."""
    original: Function = torch.distributed.init_process_group

    def init_process_group(*args: object, **kwargs: object) -> None:
        if not _is_ours():
            run.first_step.leave("the script distributes itself")
        if not _is_ours() and not run.world.is_alone:
            if run.options.is_auto and not run.has_begun:
                run.stand_aside()
                original(*args, **kwargs)
                return
            raise ScalingError(
                "the script distributes itself: it calls torch.distributed.init_process_group()",
                "echelon run --scale off …",
            )
        original(*args, **kwargs)

    why = "A script that distributes itself is not scaled a second time."
    patches.replace(torch.distributed, "init_process_group", init_process_group, why=why)
    if not run.world.is_alone:
        patches.replace(nn.DataParallel, "__init__", _refuse_data_parallel, why=why)


def _refuse_data_parallel(*_args: object, **_kwargs: object) -> None:
    raise ScalingError(
        "the script uses nn.DataParallel, which drives all devices from one process",
        "remove nn.DataParallel: under echelon every device has a rank of its own",
    )


def _is_ours() -> bool:
    """Say whether the caller's caller is in this room."""
    frame = sys._getframe(2)
    return str(frame.f_globals.get("__name__", "")).startswith(__name__.rpartition(".")[0])
