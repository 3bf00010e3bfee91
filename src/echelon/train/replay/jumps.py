"""Jumps over the loop: a continued run comes to a place of it once, and takes what the script's variables had there.

When the state is saved, the script waits at the same place as often before. What its variables hold now is put into
the journal instead of all entries since the first time. Where that is not certain, the entries stay, and are repeated.
"""

import itertools
import os
import sys
from collections.abc import Callable, Mapping
from functools import lru_cache
from types import CodeType, FrameType, GeneratorType
from typing import Any, NamedTuple

import torch

from ..rng import generators
from ..scaling_error import ScalingError
from ..training import Training
from ..wire import plain_data
from .carried import frames_with_names, ids_of_tensors, modules_of_script
from .changes import changed_variables, changes_of
from .iterator_positions import position_of
from .left_out import LeftOut
from .object_parts import is_needed
from .passes import Passes
from .picture import FirstPicture, Picture, without_collector
from .placing import Placing
from .state import ScriptObjects
from .tape import JUMP, Journal, JournalMark, is_ours_frame
from .value_stack import Unclear, called_names, live_names, loops_of, place_in_words, sees_all

_GENERATOR = 0x20
_MOST_PLACES = 200
_CALLS_NEXT = frozenset(("next", "__next__", "send"))


class FirstVisit(NamedTuple):
    mark: JournalMark
    begun: FirstPicture
    order: list[Any]
    """The paths of the models and optimizers."""
    settings: dict[str, object]
    """What must not change, and is in no variable of the script."""


class Frames(NamedTuple):
    """The functions that wait at a place, from the outermost, with names; those of the script among them."""

    all: list[tuple[FrameType, str]]
    inner: list[FrameType]
    """Those that the innermost function of the script waits for."""


class Jumps:
    def __init__(
        self, run: Training, tape: Journal, objects: ScriptObjects, passes: Passes, num_hooks: Callable[[], int]
    ) -> None:
        self._run, self._tape, self._objects, self._passes, self._num_hooks = run, tape, objects, passes, num_hooks
        self._seen: set[Any] = set()
        self._firsts: dict[str, FirstVisit] = {}
        self.left_out = LeftOut(objects, passes, run.say)
        self._num_left_out = 0
        self._has_said_slow = False

    def note(self) -> None:
        """Notice that the script is at a place where its state may be saved."""
        place = _quick_place()
        if place in self._seen or len(self._seen) > _MOST_PLACES:
            return
        self._seen.add(place)
        with self._tape.paused():
            try:
                frames = _frames()
                name = _name_of(frames)
                if name not in self._firsts:
                    self._firsts[name] = self._first(self._tape.mark(), self._picture(frames, None))
            except Exception:  # noqa: BLE001  # the script's own classes may fail in their own way; cut() says how
                return

    def _first(self, mark: JournalMark, picture: Picture) -> FirstVisit:
        begun = picture.begun()
        return FirstVisit(mark, begun, _order(self._ordered(), begun.paths), self._settings())

    def unread(self) -> set[str]:
        """Return the variables that the script does not read again, as carried.py names them."""
        names = set()
        for frame, name in frames_with_names():
            if name:
                live = _live_of(frame)
                names |= {f"{name}.{key}" for key in list(frame.f_locals) if live is not None and key not in live}
        return names

    def cut(self, num_steps: int) -> bool:
        """Let the journal have what the script's variables hold, instead of the way to it, if that is certain."""
        written = self._run.files.written
        try:
            frames = _frames()
            first = self._firsts.get(_name_of(frames))
            if first is None:
                return False
            about = [
                num_steps,
                self._passes.num_begun,
                generators.portable_state(),
                dict(written.before if written else {}),
            ]
            with without_collector():
                content = plain_data.encode({**self._value(frames, first), "about": about})
        except ScalingError as error:
            error.withdraw()
            return self._say_slow(str(error).partition("\n")[0])
        except Unclear as reason:
            return self._say_slow(str(reason))
        except Exception as error:  # noqa: BLE001  # the script's own classes may fail in their own way
            return self._say_slow(f"an object of the script cannot be looked at: {error!r}")
        self._tape.cut(first.mark, content)
        self._firsts = {name: one for name, one in self._firsts.items() if one.mark.chunk <= first.mark.chunk}
        self._seen.clear()
        return True

    def _say_slow(self, why: str) -> bool:
        if not self._has_said_slow:
            self._has_said_slow = True
            self._run.say(f"note: a run that continues from this loop repeats its steps without computing: {why}")
        return False

    def _value(self, frames: Frames, first: FirstVisit) -> dict[str, Any]:
        picture = self._picture(frames, first.begun)
        opened = [picture.number_of(one) for one in self._passes.open]
        begun = [(picture.number_of(loader), number) for loader, number in list(self._passes.begun.items())]
        nodes, places = changes_of(picture, first.begun)
        saved = ids_of_tensors(self.unread()) | self._objects.ids()
        for number, (kind, *_, is_changed) in enumerate(nodes):
            if kind == "tensor" and is_changed and id(picture.objects[number]) not in saved:
                picture.refusals.append(
                    (picture.paths[number], "a tensor is in no variable of a function that is called")
                )
        picture.refuse_shared_memory(places, self._objects.weights().values())
        changed_globals = changed_variables(picture, first.begun)
        if picture.refusals:
            path, reason = picture.refusals[0]
            raise Unclear(f"{_variable(path, frames)}: {reason}")
        if _order(self._ordered(), dict(zip(map(id, picture.objects), places, strict=True))) != first.order:
            raise Unclear("the loop makes models or optimizers")
        changed = [name for name, value in self._settings().items() if value != first.settings[name]]
        if changed:
            raise Unclear(f"the loop has changed {changed[0]}")
        pyplot = sys.modules.get("matplotlib.pyplot")
        if pyplot is not None and pyplot.get_fignums():
            raise Unclear("a figure of matplotlib is open")
        if None in opened:
            raise Unclear("a pass over a loader is in no variable and no loop of the script")
        return {
            "stack": _name_of(frames),
            "nodes": nodes,
            "places": places,
            "globals": changed_globals,
            "open": opened,
            "begun": [[number, place] for number, place in begun if number is not None],
        }

    def _picture(self, frames: Frames, begun: FirstPicture | None) -> Picture:
        modules = modules_of_script()
        picture = Picture(self._objects.names_of_weights(), modules.__contains__, begun)
        picture.asking = self._passes.asking
        of_module = {}
        for frame, name in frames.all:
            if frame.f_code.co_name == "<module>":
                of_module[str(frame.f_globals.get("__name__"))] = (frame, name)
            picture.add(frame, name)
        for module in modules.values():
            name = module.__name__
            live = _live_of(of_module[name][0]) if name in of_module else None
            path = of_module[name][1] if name in of_module else name
            picture.add_globals(module, path, live)
        for frame in frames.inner:
            if picture.number_of(frame) is None:
                raise Unclear(f"{frame.f_code.co_name}() of {os.path.basename(frame.f_code.co_filename)} waits")
        return picture

    def _ordered(self) -> list[Any]:
        return [*self._objects.models(), *self._objects.optimizers()]

    def _settings(self) -> dict[str, object]:
        return {
            "hooks": self._num_hooks(),
            "whether gradients are computed": torch.is_grad_enabled(),
            "the default dtype": torch.get_default_dtype(),
            "the number of threads": torch.get_num_threads(),
            "a variable of the environment": dict(os.environ),
            "the current folder": os.getcwd(),
            "sys.path": list(sys.path),
            "the limit of recursion": sys.getrecursionlimit(),
            "the context of decimal": repr(decimal.getcontext()) if (decimal := sys.modules.get("decimal")) else "",
            "the precision of float32": torch.get_float32_matmul_precision(),
            "whether algorithms are deterministic": torch.are_deterministic_algorithms_enabled(),
            "which modules of the script are imported": sorted(modules_of_script()),
        }

    def play(self, num_steps: int) -> int:
        """Carry out the jump that comes next in the journal, if it is from this place; return the number of steps."""
        if self._tape.next_kind() != JUMP:
            return num_steps
        with self._tape.paused():
            try:
                frames = _frames()
                name = _name_of(frames)
            except Unclear:
                return num_steps
            mark, jump = self._tape.mark(), plain_data.decode(self._tape.look())
            if jump["stack"] != name:
                return num_steps
            self._tape.skip()
            picture = self._picture(frames, None)
            self._firsts[name] = self._first(mark, picture)
            placing = Placing(jump["nodes"], jump["places"], picture, self._passes, self._objects.weights())
            try:
                placing.put()
            except Unclear as reason:
                raise ScalingError(
                    f"the script goes another way than before the checkpoint: {reason}",
                    "start it with the arguments that it had, or without --resume",
                ) from None
            for module, names in jump["globals"]:
                vars(sys.modules[module]).update({key: placing.value(one) for key, one in names})
            num_steps_then, num_begun, random, written = jump["about"]
            self._num_left_out += num_steps_then - num_steps
            self._passes.put_place(
                num_begun,
                [placing.value(one) for one in jump["open"]],
                [(placing.value(one), number) for one, number in jump["begun"]],
            )
            generators.put_portable_state(random)
            if self._run.files.written is not None:
                self._run.files.written.note_again(written)
            return int(num_steps_then)

    def way_in_words(self, num_steps: int) -> str:
        num_repeated = num_steps - self._num_left_out
        if not self._num_left_out:
            return "the steps before it were repeated without computing"
        more = f", and {num_repeated} steps were repeated without computing" if num_repeated > 1 else ""
        return f"its variables were put back{more}"


def _order(objects: list[Any], paths: Mapping[int, str]) -> list[Any]:
    return [paths.get(id(one), id(one)) for one in objects]


def _quick_place() -> tuple[int, ...]:
    """Return where all functions wait, quickly: each step asks."""
    place = []
    frame: FrameType | None = sys._getframe(2)
    while frame is not None:
        place += [id(frame.f_code), frame.f_lasti]
        frame = frame.f_back
    return tuple(place)


def _frames() -> Frames:
    """Return the functions that wait; raises Unclear where one waits in a way that cannot be repeated."""
    frames = list(frames_with_names())
    own = [number for number, (_, name) in enumerate(frames) if name]
    if not own:
        raise Unclear("no function of the script waits")
    waiting = frames[own[0] : own[-1] + 1]
    named = [
        (frame, name or f"library-{number}:{frame.f_code.co_name}") for number, (frame, name) in enumerate(waiting)
    ]
    for (caller, _), (callee, _) in itertools.pairwise(named):
        if is_ours_frame(callee):
            raise Unclear(f"a function that echelon calls waits: {caller.f_code.co_name}()")
        _refuse_unknown_call(caller, callee)
    inner = []
    for frame, _ in frames[own[-1] + 1 :]:
        module = str(frame.f_globals.get("__name__", ""))
        if is_ours_frame(frame):
            break
        if not module.startswith(("torch.", "contextlib")):
            inner.append(frame)
    return Frames(named, inner)


def _refuse_unknown_call(caller: FrameType, callee: FrameType) -> None:
    """Refuse a call through a function of C, which may carry values that nobody sees, such as sum() or map()."""
    try:
        names, loops = called_names(caller), loops_of(caller)
    except Unclear as reason:
        raise Unclear(f"{_where(caller)}: {reason}") from None
    if callee.f_code.co_flags & _GENERATOR:
        is_next = not _CALLS_NEXT.isdisjoint(names) if names else bool(loops) and _leads_to(loops[-1][1], callee)
        if not is_next:
            raise Unclear(f"{_where(caller)}: a function of C loops over {callee.f_code.co_name}()")
        return
    if callee.f_code.co_name in names:
        return
    for name in names:
        function = caller.f_locals.get(name, caller.f_globals.get(name))
        codes = [getattr(function, "__code__", None), getattr(getattr(function, "__wrapped__", None), "__code__", None)]
        if isinstance(function, type):
            codes.append(getattr(getattr(function, "__init__", None), "__code__", None))
        if callee.f_code in codes:
            return
    raise Unclear(f"{_where(caller)}: {callee.f_code.co_name}() is called in a way that does not show its caller")


def _leads_to(iterator: Any, frame: FrameType) -> bool:
    if isinstance(iterator, GeneratorType):
        return iterator.gi_frame is frame
    if isinstance(iterator, (enumerate, zip)):
        return _leads_to(position_of(iterator).inner[0], frame)
    return False


def _name_of(frames: Frames) -> str:
    """Return a name for the place that is the same in each process."""
    places = [
        (os.path.basename(frame.f_code.co_filename), frame.f_code.co_name, place_in_words(frame))
        for frame, _ in frames.all
    ]
    return str(places)


def _live_of(frame: FrameType) -> set[str] | None:
    """Return the variables of a function that may be read before they are written; None: all of them may be."""
    names = live_names(frame)
    if frame.f_code.co_name == "<module>":
        mentioned = _mentioned(frame.f_code)
        if mentioned is None or frame.f_globals.get("__name__") != "__main__":
            return None
        names |= mentioned
    return names | {key for key, value in list(frame.f_locals.items()) if is_needed(value)}


@lru_cache(maxsize=64)
def _mentioned(code: CodeType) -> frozenset[str] | None:
    """Return the names that functions inside of a code mention; None: they may read variables without their names."""
    if sees_all(code):
        return None
    names: set[str] = set()
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            mentioned = _mentioned(inner)
            if mentioned is None:
                return None
            names |= {*inner.co_names, *mentioned}
    return frozenset(names)


def _where(frame: FrameType) -> str:
    return f"{os.path.basename(frame.f_code.co_filename)}:{frame.f_lineno}"


def _variable(path: str, frames: Frames) -> str:
    """Return a path in words: the line, and the variable."""
    root, _, rest = path.partition(".")
    frame = next((frame for frame, name in frames.all if name == root), frames.all[-1][0])
    return f"{_where(frame)}: `{rest or root}`"
