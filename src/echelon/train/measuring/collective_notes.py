"""Note a rank's last collectives, and the batches of its loaders, in the page that outlives it: `node.call_page`."""

import ctypes
import os
import signal
import struct
import sys
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial, wraps
from types import FrameType
from typing import Any, TypeVar, cast

import torch
import torch.distributed as dist

from ...node import call_page
from ...node.call_page import FAILED, RETURNED, RUNNING, WAITS
from ...pytorch import distributed, internals
from ..function_types import Function
from ..wire import lines
from . import unused_weights

Func = TypeVar("Func", bound=Function)
BETWEEN_TWO = ("send", "recv")
"""Calls that not all ranks of a group make: they have no number."""
_FROM, _TO = "from", "to"
_PEERS = {
    b"broadcast": (1, "src", _FROM), b"recv": (1, "src", _FROM), b"send": (1, "dst", _TO), b"reduce": (1, "dst", _TO),
    b"scatter": (2, "src", _FROM), b"gather": (2, "dst", _TO), b"broadcast_object_list": (1, "src", _FROM),
}  # fmt: skip
"""Where a call has the rank from or to which it is, among its arguments and by name."""
MOST_TEXTS = 1024
_BATCHES = struct.Struct("=Q").pack_into


class _Group:
    """A process group: its name in the page, and how many calls this rank has made in it."""

    def __init__(self, name: str) -> None:
        self.name, self.number = name.encode(), 0


class _Loop:
    """A loop of the script over an iterator of a loader."""

    def __init__(self, iterator: object, at: int) -> None:
        self.iterator, self.at, self.num_batches = weakref.ref(iterator), at, 0


class CollectiveNotes:
    """The calls of this rank, in the page of a descriptor; without one in memory that nobody reads."""

    def __init__(self, descriptor: int = -1) -> None:
        self._page = _mapped(descriptor)
        self._ordinal = self._num_loops = 0
        self._groups: dict[str | None, _Group] = {}
        self._texts: dict[object, bytes] = {}
        self._files: dict[str, tuple[bytes, bool]] = {}
        self._of_backward = (0, b"")
        """The script's line that goes backward: a thread of the device has no line of its own."""
        self._loops: list[_Loop] = []
        self._turns: dict[tuple[int, bytes], int] = {}
        os.register_at_fork(after_in_child=self._leave_page)

    def _leave_page(self) -> None:
        self._page = memoryview(bytearray(call_page.END))

    def recorded(self, kind: str, call: Func, group_at: int = 0) -> Func:
        """Return a collective that notes its calls; `group_at` is the place of its group, 0: found by its type."""
        name, has_number = kind.encode(), kind not in BETWEEN_TWO

        @wraps(call)
        def calling(*args: object, **kwargs: object) -> object:
            if torch.compiler.is_compiling() or (group_at and internals.num_dispatch_modes()):  # it is traced
                return call(*args, **kwargs)
            ordinal = self._begin(name, has_number, group_at, args, kwargs)
            state = FAILED
            try:
                result = call(*args, **kwargs)
                state = RETURNED
            finally:
                if ordinal:
                    self._page[_slot_of(ordinal) + call_page.STATE_AT] = state
            return result

        return cast("Func", calling)

    def _begin(
        self, kind: bytes, has_number: bool, group_at: int, args: tuple[object, ...], kwargs: dict[str, object]
    ) -> int:
        group = kwargs.get("group")
        if group is None and group_at:
            group = args[group_at] if group_at < len(args) else ()
        elif group is None and args:
            for value in args[kind != b"barrier" :]:  # its first argument is the group, that of others a tensor
                if value is dist.GroupMember.NON_GROUP_MEMBER or isinstance(value, dist.ProcessGroup):
                    group = value
        own = self._group(group)
        if own is None:
            return 0
        if has_number:
            own.number += 1
        tensor = self._text(args or kwargs.values()) + _peer(kind, args, kwargs)
        return self._note(kind, own, own.number if has_number else 0, tensor, self._place(sys._getframe(2)))

    def _note(self, kind: bytes, group: _Group, number: int, tensor: bytes, place: tuple[int, bytes]) -> int:
        self._ordinal = ordinal = self._ordinal + 1
        row = ordinal, number, RUNNING, place[0], kind, group.name, place[1], tensor
        call_page.CALL.pack_into(self._page, _slot_of(ordinal), *row)
        return ordinal

    def _group(self, group: object) -> _Group | None:
        """Return what is known of a group, None for the default one; None if there is none, as the call will tell."""
        name = None if group is None else _name_of(group)
        known = self._groups.get(name)
        if known is None and dist.is_initialized() and name != "":
            is_default = name is None or name == _name_of(dist.group.WORLD)
            known = self._groups.setdefault(None, _Group("")) if is_default else _Group(str(name))
            self._groups[name] = known
        return known

    @contextmanager
    def going_backward(self) -> Iterator[Callable[[], object]]:
        """Note a pass backward, which begins collectives of which Python hears nothing: DistributedDataParallel's.

        The value says that the pass has computed all gradients. A pass has a number if it began such a collective.
        """
        is_alone = not dist.is_available() or not dist.is_initialized() or dist.get_world_size() == 1
        group = None if is_alone else self._group(None)
        if group is None:
            yield lambda: None
            return
        world, ordinal_before = dist.group.WORLD, self._ordinal
        begun_before = _num_begun(world)
        self._of_backward = self._place(sys._getframe(1))
        ordinal = self._note(b"backward", group, 0, b"", self._of_backward)

        def settle(state: int) -> bool:
            num_own = self._ordinal - ordinal_before - 1
            is_sure = state == RETURNED or num_own == 0  # else fully_shard may begin more of its own
            number = group.number + 1 if is_sure and _num_begun(world) - begun_before > num_own else 0
            if self._ordinal - ordinal < call_page.NUM_CALLS:
                call_page.STATE.pack_into(self._page, _slot_of(ordinal) + call_page.NUMBER_AT, number, state)
            return number > 0

        try:
            yield partial(settle, WAITS)
        except BaseException:
            group.number += settle(FAILED)
            raise
        if settle(RETURNED):
            group.number += 1
        elif self._ordinal == ordinal:
            self._ordinal -= 1  # the next call takes its slot: no other rank was asked for anything

    def _text(self, values: Any) -> bytes:
        """Return dtype and shape of a call's own tensor, else of the first one in a list."""
        tensor = None
        for value in values:
            if isinstance(value, torch.Tensor):
                tensor = value
                break
            if tensor is None and type(value) is list and value and isinstance(value[0], torch.Tensor):
                tensor = value[0]
        if tensor is None:
            return b""
        key = tensor.dtype, tensor.shape
        try:
            text = self._texts.get(key)
        except TypeError:
            return b""  # a size that is no number: it is traced
        if text is None:
            if len(self._texts) >= MOST_TEXTS:
                self._texts.clear()
            text = self._texts[key] = f"{key[0]} {list(key[1])}".removeprefix("torch.").encode()
        return text

    def _place(self, frame: FrameType | None) -> tuple[int, bytes]:
        """Return the script's innermost line, else that of a library; in a thread without either, that of backward."""
        fallback = None
        while frame is not None:
            path = frame.f_code.co_filename
            known = self._files.get(path)
            if known is None:
                name = os.path.basename(path).encode() if lines.is_of_script(frame) else b""
                known = self._files[path] = name, lines.is_file_of_script(path)
            if known[0]:
                line = frame.f_lineno or 0  # code that a compiler has made may have none
                if known[1]:
                    return line, known[0]
                fallback = fallback or (line, known[0])
            frame = frame.f_back
        return fallback or self._of_backward

    def loaded(self, iterator: object) -> None:
        """Count a batch of a loader."""
        loop = self._loop(iterator)
        loop.num_batches += 1
        _BATCHES(self._page, loop.at + call_page.BATCHES_AT, loop.num_batches)

    def ended(self, iterator: object) -> None:
        """Note that a loader has no more batches."""
        loop = self._loop(iterator)
        self._page[loop.at + call_page.LOOP_ENDED_AT] = 1
        self._loops.remove(loop)

    def _loop(self, iterator: object) -> _Loop:
        for loop in self._loops:
            if loop.iterator() is iterator:
                return loop
        self._num_loops += 1
        at = call_page.LOOPS_AT + self._num_loops % call_page.NUM_LOOPS * call_page.LOOP_BYTES
        line, file = place = self._place(sys._getframe(2))
        turn = self._turns[place] = self._turns.get(place, 0) + 1
        call_page.LOOP.pack_into(self._page, at, self._num_loops, 0, line, 0, turn & 0xFFFF, file)
        self._loops = [loop for loop in self._loops if loop.at != at and loop.iterator() is not None]
        self._loops.append(_Loop(iterator, at))
        return self._loops[-1]

    def note_error(self, error: BaseException) -> None:
        """Note what an error does not tell: names of parameters for their indices, or how a loader's worker ended."""
        told = unused_weights.told(error, _owners(error)) or _lost_worker(error)
        text = told.encode()[: call_page.NOTE_BYTES - 1]
        self._page[call_page.NOTE_AT : call_page.NOTE_AT + len(text)] = text


def _peer(kind: bytes, args: tuple[object, ...], kwargs: dict[str, object]) -> bytes:
    """Return from or to which rank a call is, if the script says it."""
    known = _PEERS.get(kind)
    if known is None:
        return b""
    place, name, word = known
    peer = args[place] if place < len(args) else kwargs.get(name)
    return f" {word} rank {peer}".encode() if type(peer) is int else b""


def _slot_of(ordinal: int) -> int:
    return call_page.CALLS_AT + ordinal % call_page.NUM_CALLS * call_page.CALL_BYTES


def _name_of(group: object) -> str:
    """Return the name of a group, of a dim of a mesh, or of a mesh with one dim; empty if there is none."""
    if isinstance(group, str):
        return group
    with suppress(RuntimeError, LookupError):  # a mesh with several dims: the call itself tells it
        if isinstance(group, tuple) and len(group) == 2 and hasattr(group[0], "get_group"):
            group = group[0].get_group(group[1])
        elif hasattr(group, "get_group"):
            group = group.get_group()
    return str(getattr(group, "group_name", ""))


def _num_begun(group: object) -> int:
    try:
        return distributed.num_collectives(group)
    except RuntimeError:
        return 0  # a backend that does not count


def _mapped(descriptor: int) -> memoryview:
    """Map the page; Python's own map would need a second descriptor, and a write for each call takes longer."""
    with suppress(RuntimeError, OSError):
        if descriptor >= 0:
            path = f"/proc/self/fd/{descriptor}"
            tensor = torch.from_file(path, shared=True, size=call_page.END, dtype=torch.uint8, device="cpu")
            memory = (ctypes.c_char * call_page.END).from_address(tensor.data_ptr())
            memory.tensor = tensor  # type: ignore[attr-defined]  # which holds the map
            return memoryview(memory).cast("B")
    return memoryview(bytearray(call_page.END))


def _owners(error: BaseException) -> Iterator[object]:
    """Yield the objects in whose methods an error came up, the outermost first."""
    trace = error.__traceback__
    while trace is not None:
        yield trace.tb_frame.f_locals.get("self")
        trace = trace.tb_next


def _lost_worker(error: BaseException) -> str:
    """Return how a worker of a loader ended that a signal has killed; empty if none was."""
    loaders = [owner for owner in _owners(error) if isinstance(owner, internals.LoaderIterator)]
    killed = [-status for loader in loaders for status in internals.ends_of_workers(loader) if status < 0]
    names = {each.value: each.name for each in signal.Signals}
    return f"a worker of its DataLoader was killed by {names.get(killed[0], f'signal {killed[0]}')}" if killed else ""
