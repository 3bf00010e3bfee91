"""Hook the functions of PyTorch that a rank measures, below all other hooks of echelon: their time is measured too."""

import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial, wraps
from typing import Any, TypeVar, cast

import torch
import torch.distributed as dist
from torch import nn

from ...pytorch import internals, targets
from ...pytorch import modules as torch_modules
from .. import events, patches
from ..function_types import Function
from ..scaling_error import leave_out_own_frames, tell_owner
from .collective_notes import CollectiveNotes
from .measures import Measures, Write
from .spans import Spans
from .value_watch import LOSS, NORM

_WHY_SAMPLES = "The first step with a value that is not finite is told, with its samples."
_WHY = "The report of a run says where the time of its steps went."
_WHY_CALLS = "A run that ends in a collective says which rank left which."
Func = TypeVar("Func", bound=Function)
COLLECTIVES = (
    "all_reduce", "reduce", "broadcast", "all_gather", "all_gather_into_tensor", "all_gather_object", "gather",
    "reduce_scatter", "reduce_scatter_tensor", "all_to_all", "all_to_all_single", "scatter", "barrier", "send", "recv",
    "all_gather_single", "reduce_scatter_single", "broadcast_object_list", "gather_object", "scatter_object_list",
    "monitored_barrier",
)  # fmt: skip

FUNCTIONAL = {
    "all_reduce": 2, "all_gather_tensor": 2, "reduce_scatter_tensor": 3, "all_to_all_single": 3, "broadcast": 2
}  # fmt: skip
"""DTensor's collectives, and the place of the group among their arguments."""
WAITS = (
    (torch_modules.COLLECTIVES, "wait_tensor"),  # DTensor: tensor and context parallel
    (torch_modules.FULLY_SHARDED, "FSDPParamGroup.wait_for_unshard"),
)
"""Functions of modules that a script may never import, in which computing waits for a collective asked for before."""


def install(
    names: Sequence[str],
    write: Write,
    count: Callable[..., None],
    tell: Callable[[str], None] = lambda _: None,
    page: int = -1,
) -> bool:
    """Measure this process's training from now on; return whether this PyTorch is known.

    After each step `count` is called, and then `write` gets the values of the names. `tell` gets notes about bad steps,
    and the page of this descriptor the last collectives.
    """
    gone = targets.changes("measure")
    if gone:
        if os.environ.get("RANK", "0") == "0":
            sys.stderr.write(f"echelon: {targets.describe(gone)}; this run is not measured\n")
        return False
    events.after_step.listen("pulse", count, why=_WHY)
    measures, calls = Measures(names, write, tell), CollectiveNotes(page)
    _hook_loaders(measures, calls)
    _hook_backward(measures, calls)
    _follow_steps(measures)
    _hook_norms(measures)
    patches.replace(torch, "save", _timed(measures.spans, torch.save, "save_seconds"), why=_WHY)
    _hook_communication(measures.spans, calls)
    _hook_compilers(measures)
    _hook_tracebacks(calls)
    return True


def _hook_communication(spans: Spans, calls: CollectiveNotes) -> None:
    def wrap(original: Func) -> Func:
        return _timed(spans, original, "communication_seconds")

    for owner, name in _communicating():
        timed = wrap(getattr(owner, name))
        patches.replace(owner, name, calls.recorded(name, timed) if owner is dist else timed, why=_WHY)
    for name, place in FUNCTIONAL.items():
        recorded = partial(calls.recorded, name, group_at=place)
        patches.Hooks().replace(torch_modules.COLLECTIVES, name, recorded, why=_WHY_CALLS)
    for module, attribute in WAITS:
        patches.Hooks().replace(module, attribute, wrap, why=_WHY)


def _communicating() -> Iterator[tuple[object, str]]:
    """Yield the functions in which Python waits for other ranks."""
    if dist.is_available():
        yield from ((dist, name) for name in COLLECTIVES if hasattr(dist, name))
        yield dist.Work, "wait"


def _hook_loaders(measures: Measures, calls: CollectiveNotes) -> None:
    original: Function = internals.LoaderIterator.__next__
    load = _timed(measures.spans, original, "data_seconds")

    @wraps(original)
    def following(self: object) -> object:
        is_training = measures.spans.may_measure()
        try:
            batch = load(self)
        except StopIteration:
            if is_training:
                calls.ended(self)
            raise
        if is_training:
            measures.loaded(self, batch)
            calls.loaded(self)
            given.gave(self, batch)
        return batch

    def next_index(self: object) -> object:
        indices = draw(self)
        given.drew(self, indices)
        return indices

    given = measures.bad_steps.given
    draw = getattr(internals.LoaderIterator, internals.NEXT_INDEX)
    patches.replace(internals.LoaderIterator, "__next__", following, why=_WHY)
    patches.replace(internals.LoaderIterator, internals.NEXT_INDEX, next_index, why=_WHY_SAMPLES)


def _hook_backward(measures: Measures, calls: CollectiveNotes) -> None:
    original: Function = torch.autograd.backward
    spans = measures.spans

    @wraps(original)
    def backward(tensors: list[torch.Tensor], *args: object, **kwargs: object) -> None:
        if not spans.may_measure():
            original(tensors, *args, **kwargs)
            return
        measures.trained()
        measures.bad_steps.note(LOSS, tensors)
        depth = spans.depth
        spans.begin("backward_seconds")
        with calls.going_backward() as wait:

            def begin_wait() -> None:
                spans.become("communication_seconds")
                wait()

            handle = _after_gradients(tensors, begin_wait)
            try:
                original(tensors, *args, **kwargs)
            finally:
                spans.end(depth)
                if handle is not None:
                    handle.remove()  # the script may go backward once more

    patches.replace(torch.autograd, "backward", backward, why=_WHY)


def _after_gradients(tensors: object, act: Callable[[], None]) -> Any:
    """Call a function when a pass has computed all gradients, and now waits for other ranks; return the hook, or None.

    PyTorch calls functions at the end of a pass in the order in which they were asked for. That of
    DistributedDataParallel waits for its collectives. Ours is asked for at the begin of the pass, so it comes first.
    """
    node = tensors.grad_fn if type(tensors) is torch.Tensor else None
    if node is None or not dist.is_available() or not dist.is_initialized() or dist.get_world_size() == 1:
        return None
    return node.register_prehook(lambda _: internals.at_end_of_backward(act))


def _follow_steps(measures: Measures) -> None:
    spans = measures.spans
    depths: list[int] = []

    def before(optimizer: torch.optim.Optimizer) -> None:
        if spans.may_measure():
            spans.end(depths.pop() if depths else spans.depth)  # a step that failed has left its span
            depths.append(spans.depth)  # a script may step within backward()
            measures.bad_steps.before_step(optimizer)
            spans.begin("optimizer_seconds")

    def after(optimizer: torch.optim.Optimizer) -> None:
        if spans.may_measure():
            measures.bad_steps.after_step(optimizer)
            spans.end(depths.pop() if depths else spans.depth)
            measures.step()

    events.before_step.listen("measuring", before, why=_WHY)
    events.after_step.listen("measuring", after, why=_WHY)
    _follow_span(spans, events.closing, "")
    _follow_span(spans, events.checking, "check_seconds")


def _follow_span(spans: Spans, told: events.Span, name: str) -> None:
    depths: list[int] = []

    def begin() -> None:
        depths.append(spans.depth)
        if spans.may_measure():
            spans.begin(name)

    def end() -> None:
        depth = depths.pop()
        if spans.may_measure():
            spans.end(depth)

    told.begin.listen("measuring", begin)
    told.end.listen("measuring", end)


def _hook_norms(measures: Measures) -> None:
    """Let who watches for bad steps know norms, losses that a GradScaler scales, and gradients that are left out."""
    original: Function = nn.utils.clip_grad_norm_

    @wraps(original)
    def clip_grad_norm_(*args: object, **kwargs: object) -> torch.Tensor:
        norm: torch.Tensor = original(*args, **kwargs)
        if not torch.compiler.is_compiling():
            events.clipped(norm)
        return norm

    for owner in (nn.utils, nn.utils.clip_grad):
        patches.replace(owner, "clip_grad_norm_", clip_grad_norm_, why=_WHY_SAMPLES)
    bad_steps, may_measure = measures.bad_steps, measures.spans.may_measure
    events.clipped.listen("measuring", lambda norm: bad_steps.note(NORM, norm) if may_measure() else None)
    scale: Function = torch.amp.GradScaler.scale

    @wraps(scale)
    def scaled(self: object, outputs: object) -> object:
        result = scale(self, outputs)
        if not torch.compiler.is_compiling():
            bad_steps.scale(outputs, result)
        return result

    patches.replace(torch.amp.GradScaler, "scale", scaled, why=_WHY_SAMPLES)
    events.cleared.listen("measuring", bad_steps.clear, why=_WHY_SAMPLES)


def _timed(spans: Spans, original: Func, name: str) -> Func:
    """Return a function that adds the time of its calls to a sum."""

    @wraps(original)
    def timed(*args: object, **kwargs: object) -> object:
        if torch.compiler.is_compiling() or not spans.may_measure() or spans.is_beside():
            return original(*args, **kwargs)
        depth = spans.depth
        spans.begin(name)
        try:
            return original(*args, **kwargs)
        finally:
            spans.end(depth)

    return cast("Func", timed)


def _hook_compilers(measures: Measures) -> None:
    """Add the time of torch.compile's work, which happens in a model's first calls."""
    began: list[float] = []

    def begin(*_: object) -> None:
        began[:] = [time.perf_counter()]

    def end(*_: object) -> None:
        if began:
            measures.compiled(time.perf_counter() - began.pop())

    def act(module: object) -> None:
        handler = getattr(module, "callback_handler", None)
        if handler is None:
            return

        def register(both: Any) -> None:
            handler.register_start_callback(both[0])
            handler.register_end_callback(both[1])

        def remove() -> None:
            handler.start_callbacks.remove(begin)
            handler.end_callbacks.remove(end)

        patches.hook(register, (begin, end), why=_WHY, name=torch_modules.COMPILER_CALLBACKS + ".…", remove=remove)

    patches.Hooks().when_imported(torch_modules.COMPILER_CALLBACKS, act, why=_WHY)


def _hook_tracebacks(calls: CollectiveNotes) -> None:
    original = sys.excepthook

    def excepthook(kind: type, error: BaseException, trace: Any) -> None:
        calls.note_error(error)
        if not os.environ.get("ECHELON_TRACEBACK"):
            leave_out_own_frames(error)
        original(kind, error, error.__traceback__ or trace)
        tell_owner(error)

    patches.replace(sys, "excepthook", excepthook, why="The traceback of an error is that of plain Python.")
