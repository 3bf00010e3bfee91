"""The journal of what a script's loop has read, and the place in it.

A first run records; a continued run plays the same journal. An entry is a kind and a value. The kinds are the names of
functions of tensors ("item"), BATCH, END of a pass over a loader, STEPPED for a gradient scaler, and JUMP: what the
script's variables held, in place of all entries before it.
"""

import os
import sys
import threading
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any, NamedTuple

import torch

from ..scaling_error import ScalingError
from ..wire import plain_data
from . import hollow

BATCH, END, STEPPED = "a batch", "the end of a pass", "a step of a scaler"
HOOK, FILE, CALL = "a hook of backward()", "the content of a file", "a call of a module"
CLOSURE, SIDE = "a call of a closure", "states of random numbers"
JUMP = "what the loop carries"
TORCH, LIBRARIES = "torch", "Python and numpy"
_WITHOUT_LINE = (HOOK, CLOSURE, SIDE, JUMP)
OFF, RECORD, PLAY = "off", "record", "play"
_OURS = __name__.partition(".")[0]  # "echelon", or the name under which a rank has it
_CHUNK = 4096


def _nothing(*_: object, **__: object) -> None: ...


class JournalMark(NamedTuple):
    """A place in a journal, and the number of forms that it had there."""

    chunk: int
    num_forms: int


class Journal:
    """A journal that is recorded or played by the main thread of one process."""

    def __init__(self) -> None:
        self.phase = OFF
        self.at_end: Callable[[], None] = lambda: None
        """Is called when the script asks for more than the journal has."""
        self.forms = Forms()
        self.on_leave: Callable[[bool], None] = _nothing
        """Is called when `paused` begins (True) and ends."""
        self.put_side: Callable[[Any], None] = _nothing
        """Takes the states of generators that the journal has beside other entries."""
        self.is_scaling = False
        """Whether a gradient scaler steps now."""
        self._pid = os.getpid()
        self._thread = threading.get_ident()
        self._depth = 0
        self._fresh: list[tuple[str, Any, str]] = []
        """Entries: the kind, what the script got, and the line that asked."""
        self._chunks: list[bytes] = []
        self._entries: list[tuple[str, Any, str]] = []
        self._chunk_of: list[int] = []
        """The chunk of each entry."""
        self._place = 0

    @property
    def is_playing(self) -> bool:
        """Whether the loop is repeated now, in the process and the thread that repeat it."""
        return self.phase == PLAY and self.is_here

    @property
    def is_recording(self) -> bool:
        return self.phase == RECORD and self.is_here

    @property
    def is_recording_at_home(self) -> bool:
        """Whether the process that records is at work, perhaps at what is left out."""
        return self.phase == RECORD and self.is_mine and threading.get_ident() == self._thread

    @property
    def is_mine(self) -> bool:
        """Whether this is the process that records or plays, and no fork of it."""
        return os.getpid() == self._pid

    @property
    def is_here(self) -> bool:
        """Whether the script itself runs: in its main thread, and outside of what echelon leaves out as a whole."""
        return self._depth == 0 and threading.get_ident() == self._thread and os.getpid() == self._pid

    @property
    def is_over(self) -> bool:
        self.restore_generators()
        return self._place >= len(self._entries)

    def restore_generators(self) -> None:
        """Put the states of generators that come next; a draw that is left out now may have needed them."""
        while self._place < len(self._entries) and self._entries[self._place][0] == SIDE:
            self._place += 1
            with self.paused():
                self.put_side(self._entries[self._place - 1][1])

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Keep nothing of what is read inside: when the loop is repeated, all of it is left out."""
        self._depth += 1
        if self._depth == 1:
            self.on_leave(True)
        try:
            yield
        finally:
            self._depth -= 1
            if not self._depth:
                self.on_leave(False)

    @contextmanager
    def resumed(self) -> Iterator[None]:
        """Keep what is read inside, although `paused` surrounds it, perhaps in a thread of PyTorch."""
        before = self._depth, self._thread
        is_at_home = before[0] > 0 and self._thread == threading.get_ident()
        self._depth, self._thread = 0, threading.get_ident()
        if is_at_home:
            self.on_leave(False)
        try:
            yield
        finally:
            self._depth, self._thread = before
            if is_at_home:
                self.on_leave(True)

    def read(self, kind: str, read: Callable[[], Any]) -> Any:
        """Return a value that the script reads: from the tensor, or from the journal."""
        if self.phase == OFF or not self.is_here or is_ours_frame(sys._getframe(2)):
            return read()
        if self.phase == PLAY:
            return self.play(kind)
        with self.paused():
            value = read()
        self.keep(kind, value)
        return value

    def left_out(self, act: Callable[..., Any], instead: Callable[..., Any] = _nothing) -> Callable[..., Any]:
        """Return a function whose results are not kept; while the loop is repeated, `instead` is called."""

        @wraps(act)
        def call(*args: Any, **kwargs: Any) -> Any:
            if self.is_playing:
                return instead(*args, **kwargs)
            with self.paused():
                return act(*args, **kwargs)

        return call

    def formed(self, kind: str, compute: Callable[[], Any], what: str) -> Any:
        """Return a result, and keep its form; while the loop is repeated, return this form without computing."""
        if self.is_playing:
            return self.forms.hollow(self.play(kind))
        if not self.is_recording:
            return compute()
        with self.paused():
            result = compute()
        try:
            self.keep(kind, self.forms.note(result))
        except ScalingError as error:
            error.withdraw()
            raise ScalingError(
                "--checkpoint-every cannot repeat {}: {}".format(what, str(error).partition("\n")[0]),
                "return tensors, numbers, text, lists, dicts, or objects of a class of the script",
            ) from None
        return result

    def keep(self, kind: str, value: object) -> None:
        self._fresh.append((kind, value, "" if kind in _WITHOUT_LINE else _line()))
        if len(self._fresh) >= _CHUNK:
            self._pack()

    def play(self, kind: str) -> Any:
        """Return the value of the next entry, which must be of this kind and come from this line."""
        if self.is_over:
            self.at_end()
            raise left_the_way(f"asks for {kind} at {_line()}", "the journal ends")
        line = "" if kind in _WITHOUT_LINE else _line()
        kind_before, value, line_before = self._entries[self._place]
        if kind_before == JUMP:
            raise left_the_way(f"asks for {kind} at {line}", "it was saved, and it does not come to that place now")
        if (kind_before, line_before) != (kind, line):
            raise left_the_way(f"asks for {kind} at {line}", f"it asked for {kind_before} at {line_before}")
        self._place += 1
        return value

    def look(self) -> Any:
        return self._entries[self._place][1]

    def skip(self) -> None:
        self._place += 1

    def next_kind(self) -> str:
        return "" if self.is_over else self._entries[self._place][0]

    def content(self) -> bytes:
        return plain_data.encode([*self._chunks, *_packed(self._fresh)])  # a state may be kept after each step

    def mark(self) -> "JournalMark":
        if self.phase == PLAY:
            return JournalMark(self._chunk_of[self._place], len(self.forms))
        self._pack()
        return JournalMark(len(self._chunks), len(self.forms))

    def cut(self, mark: "JournalMark", value: object) -> None:
        self._fresh = []
        self._chunks[mark.chunk :] = _packed([(JUMP, value, "")])
        self.forms.forget(mark.num_forms)

    def load(self, content: bytes) -> None:
        self._chunks = list(plain_data.decode(content))
        for number, chunk in enumerate(self._chunks):
            entries = plain_data.decode(zlib.decompress(chunk))
            self._entries += entries
            self._chunk_of += [number] * len(entries)

    def go_on(self) -> None:
        """Record from here on, behind the entries that were played."""
        self._entries, self._chunk_of, self._place = [], [], 0
        self.phase = RECORD

    def _pack(self) -> None:
        self._chunks += _packed(self._fresh)
        self._fresh = []


def _packed(entries: list[tuple[str, Any, str]]) -> list[bytes]:
    return [zlib.compress(plain_data.encode(entries), 1)] if entries else []


def is_ours(depth: int) -> bool:
    """Say whether a module of echelon calls: that of the frame `depth` above the caller."""
    return is_ours_frame(sys._getframe(depth + 1))


def is_ours_frame(frame: Any) -> bool:
    return is_ours_name(str(frame.f_globals.get("__name__", "")))


def is_ours_name(module: str) -> bool:
    return module.partition(".")[0] == _OURS


def _line() -> str:
    """Return the line of the script that asks: the innermost that belongs neither to echelon nor to a library."""
    frame: Any = sys._getframe(2)
    while frame is not None:
        path = frame.f_code.co_filename
        if not is_ours_frame(frame) and "-packages" not in path and not path.startswith("<"):
            return f"{os.path.basename(path)}:{frame.f_lineno:d}"
        frame = frame.f_back
    return ""


def left_the_way(now: str, before: str) -> ScalingError:
    return ScalingError(
        f"the script goes another way than before the checkpoint: now it {now}, where before {before}",
        "let the script decide by values that are the same in each start, not by the time, the process or the "
        "environment; or start it without --resume",
    )


PLAIN = (type(None), bool, int, float, complex, str, bytes, torch.dtype, torch.device, torch.Size)


class Described(NamedTuple):
    """An object in a form: its class, and its attributes."""

    module: str
    name: str
    attributes: dict[str, Any]


class Forms:
    """The forms that a journal refers to by number.

    >>> forms, again = Forms(), Forms()
    >>> entries = [forms.note((torch.ones(2, 3), size)) for size in (7, 7)]
    >>> [len(entry) for entry in entries]  # the second one only refers to the first
    [2, 1]
    >>> tensor, size = [again.hollow(entry) for entry in entries][1]
    >>> tuple(tensor.shape), size
    ((2, 3), 7)
    """

    def __init__(self) -> None:
        self._numbers: dict[Any, int] = {}
        self._forms: list[Any] = []

    def __len__(self) -> int:
        return len(self._forms)

    def forget(self, number: int) -> None:
        del self._forms[number:]
        self._numbers = {key: place for key, place in self._numbers.items() if place < number}

    def note(self, value: Any) -> list[Any]:
        """Return an entry for a value: the number of its form, and the form itself the first time.

        Raises ScalingError for a value that is neither plain data nor an object of a class that can be found again.
        """
        is_tensor = isinstance(value, torch.Tensor)
        quick = (tuple(value.shape), value.dtype, value.device.type) if is_tensor else None
        if quick in self._numbers:
            return [self._numbers[quick]]
        shapes: list[Any] = []
        form = [_described(value, shapes), shapes]
        key: Any = plain_data.encode(form)
        if key in self._numbers:
            return [self._numbers[key]]
        self._numbers[key] = len(self._forms)
        if quick is not None:
            self._numbers[quick] = len(self._forms)
        self._forms.append(form)
        return [self._numbers[key], form]

    def hollow(self, entry: list[Any]) -> Any:
        if len(entry) > 1:
            self._numbers[plain_data.encode(entry[1])] = len(self._forms)
            self._forms.append(entry[1])
        form, shapes = self._forms[entry[0]]
        rest = iter(shapes)

        def tensor(empty: torch.Tensor) -> torch.Tensor:
            shape, device = next(rest)
            return hollow.of_shape(tuple(shape), empty.dtype, device)

        return _restored(form, tensor)


def _described(value: object, shapes: list[Any]) -> Any:
    """Return a value with empty tensors, and with objects as plain data; shapes and devices go to `shapes`."""
    if isinstance(value, torch.Tensor):
        shapes.append([tuple(value.shape), value.device.type])
        return torch.empty(0, dtype=value.dtype)
    if isinstance(value, (list, tuple, dict)) and type(value) in (list, tuple, dict):
        return _mapped(value, lambda one: _described(one, shapes))
    if isinstance(value, PLAIN) or type(value).__module__ == "numpy":
        return value
    kind = type(value)
    if class_of(kind.__module__, kind.__qualname__) is not kind:
        raise ScalingError(f"a {kind.__qualname__} is made in a function", "make the class at the top of its file")
    entries = (
        list(value.items()) if isinstance(value, dict) else list(value) if isinstance(value, (list, tuple)) else []
    )
    held = {"entries": entries, "attributes": dict(getattr(value, "__dict__", {}))}
    return Described(kind.__module__, kind.__qualname__, _described(held, shapes))


def _restored(form: object, tensor: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    if isinstance(form, torch.Tensor):
        return tensor(form)
    if isinstance(form, Described):
        return _object(class_of(form.module, form.name), _restored(form.attributes, tensor))
    return _mapped(form, lambda one: _restored(one, tensor)) if type(form) in (list, tuple, dict) else form


def _object(kind: Any, held: dict[str, Any]) -> Any:
    """Make an object of a class without its constructor, as copy.copy does."""
    entries = held["entries"]
    if issubclass(kind, tuple):
        made = tuple.__new__(kind, entries)
    elif issubclass(kind, dict):
        made = kind.__new__(kind)
        for key, value in entries:
            made[key] = value
    else:
        made = kind.__new__(kind)
        if entries:
            list.extend(made, entries)
    if held["attributes"]:
        made.__dict__.update(held["attributes"])
    return made


def class_of(module: str, name: str) -> Any:
    found: Any = sys.modules.get(module)
    for part in name.split("."):
        found = getattr(found, part, None)
    return found


def _mapped(value: Any, change: Callable[[Any], Any]) -> Any:
    if isinstance(value, dict):
        return {key: change(one) for key, one in value.items()}
    return type(value)([change(one) for one in value])
