"""Read the event log of a traced training: which tensor is allocated and freed when, and what it is for."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

FORMAT = 1
STEP, BACKWARD, OPTIMIZER, END = "step", "backward", "optimizer", "end"
PHASES = (STEP, BACKWARD, OPTIMIZER, END)
FORWARD = "forward"
"""Begins another micro-batch of a step: a phase of a rank's log, which no traced log has."""
ENTER, LEAVE, ENTER_BACKWARD, LEAVE_BACKWARD = "enter", "leave", "enter backward", "leave backward"
BORDERS = (ENTER, LEAVE, ENTER_BACKWARD, LEAVE_BACKWARD)
WORKSPACE = "workspace"
"""The most that a library may take for one operation; nobody knows what it takes."""
TRACED = ("parameter", "gradient", "state", "buffer", "input", "activation", "temporary", WORKSPACE)
"""The categories of a traced tensor; a strategy adds "gathered" weights, and "communication" for messages."""

Border: TypeAlias = "tuple[str, int]"
Event: TypeAlias = "int | str | Border"
"""k ≥ 0: tensor k is allocated; -(k+1): tensor k is freed; a phase begins; a block is entered or left."""


class LoggedTensor(NamedTuple):
    """One tensor's memory."""

    num_bytes: int
    """Exact, not rounded."""
    category: str
    module: int
    """Index of the module that made the tensor; -1: none."""
    grows: bool
    """Whether the size is proportional to the rows of a batch."""
    stream: int = 0
    """The stream on which the tensor is allocated; 0 computes, others communicate."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Weight:
    """A parameter of the model."""

    name: str
    num_bytes: int
    block: int
    """Index of the block that holds the weight; -1: none."""
    tensor: int
    length: int = 0
    """The first dim, which sharding cuts; 0: unknown."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class EventLog:
    """The building of a model and two steps of its training, or those of one rank of a strategy.

    Two logs are equal only if they are one: what is computed of a log is kept for the next strategy.
    """

    torch: str
    device: str
    rows: int
    """The rows of the traced batch; 0: unknown."""
    notes: tuple[str, ...] = ()
    forward_flops: int = 0
    backward_flops: int = 0
    blocks: tuple[str, ...] = ()
    weights: tuple[Weight, ...] = ()
    modules: tuple[str, ...] = ("",)
    half: str = ""
    """Why the training computes in 16 bits already: autocast or weights; empty: it does not, or nobody knows."""
    tensors: Sequence[LoggedTensor] = ()
    events: Sequence[Event] = ()

    def changed(self, **changes: Any) -> EventLog:
        return dataclasses.replace(self, **changes)


def read(data: Any) -> EventLog:
    """Check the JSON value of an event log and return it; raise ValueError that names the wrong field."""
    _check(isinstance(data, dict), "the log is not an object of JSON, but", data)
    _check(data.get("format") == FORMAT, f"format: only {FORMAT} is known, but the log has", data.get("format"))
    rows = data.get("rows")
    _check(
        rows is None or (_is_count(rows) and rows > 0), "rows: must be a number of at least 1, or null, but is", rows
    )
    flops = data.get("flops", {})
    _check(isinstance(flops, dict), "flops: must be an object, but is", flops)
    blocks, modules = _words(data, "blocks"), _words(data, "modules")
    tensors = _tensors(_list(data, "tensors"), len(modules))
    weights = tuple(
        _weight(index, value, len(blocks), len(tensors)) for index, value in enumerate(_list(data, "weights"))
    )
    return EventLog(
        torch=_word(data, "torch"),
        device=_word(data, "device"),
        rows=rows or 0,
        notes=_words(data, "notes"),
        forward_flops=_flops(flops, "forward"),
        backward_flops=_flops(flops, "backward"),
        blocks=blocks,
        weights=weights,
        modules=modules,
        half=_word({"half": "", **data}, "half"),
        tensors=tensors,
        events=_events(_list(data, "events"), len(tensors), len(blocks)),
    )


def _check(is_right: bool, message: str, value: Any) -> None:
    if not is_right:
        text = repr(value)
        raise ValueError(f"event log: {message} {text if len(text) <= 80 else text[:77] + '…'}")


def _is_count(value: Any) -> bool:
    return type(value) is int and value >= 0


def _list(data: Mapping[str, Any], field: str) -> list[Any]:
    value = data.get(field)
    _check(isinstance(value, list), f"{field}: must be a list, but is", value)
    return value  # type: ignore[return-value]


def _word(data: Mapping[str, Any], field: str) -> str:
    value = data.get(field)
    _check(isinstance(value, str), f"{field}: must be a text, but is", value)
    return str(value)


def _words(data: Mapping[str, Any], field: str) -> tuple[str, ...]:
    words = _list(data, field)
    for index, word in enumerate(words):
        _check(isinstance(word, str), f"{field}[{index}]: must be a text, but is", word)
    return tuple(words)


def _flops(flops: Mapping[str, Any], field: str) -> int:
    value = flops.get(field, 0)
    _check(_is_count(value), f"flops.{field}: must be a whole number, but is", value)
    return int(value)


def _tensors(rows: Sequence[Any], num_modules: int) -> tuple[LoggedTensor, ...]:
    tensors = []
    known = set(TRACED)
    for index, row in enumerate(rows):
        is_row = isinstance(row, list) and len(row) == 4
        _check(is_row, f"tensors[{index}]: must be [bytes, category, module, grows], but is", row)
        num_bytes, category, module, grows = row
        _check(_is_count(num_bytes), f"tensors[{index}]: bytes must be a whole number, but is", num_bytes)
        _check(category in known, f"tensors[{index}]: category must be one of {', '.join(TRACED)}, but is", category)
        is_module = type(module) is int and -1 <= module < num_modules
        _check(is_module, f"tensors[{index}]: module must be an index below {num_modules}, or -1, but is", module)
        _check(grows in (0, 1), f"tensors[{index}]: grows must be 0 or 1, but is", grows)
        tensors.append(LoggedTensor(num_bytes, category, module, bool(grows)))
    return tuple(tensors)


def _weight(index: int, value: Any, num_blocks: int, num_tensors: int) -> Weight:
    where = f"weights[{index}]"
    _check(isinstance(value, dict), f"{where}: must be an object, but is", value)
    name, num_bytes, length = value.get("name"), value.get("bytes"), value.get("length", 0)
    block, tensor = value.get("block"), value.get("tensor")
    _check(isinstance(name, str), f"{where}.name: must be a text, but is", name)
    _check(_is_count(num_bytes), f"{where}.bytes: must be a whole number, but is", num_bytes)
    _check(_is_count(length), f"{where}.length: must be a whole number, but is", length)
    is_block = type(block) is int and -1 <= block < num_blocks
    _check(is_block, f"{where}.block: must be an index below {num_blocks}, or -1, but is", block)
    is_tensor = _is_count(tensor) and tensor < num_tensors
    _check(is_tensor, f"{where}.tensor: must be an index below {num_tensors}, but is", tensor)
    return Weight(name=name, num_bytes=num_bytes, block=block, tensor=tensor, length=length)


def _events(events: Sequence[Any], num_tensors: int, num_blocks: int) -> tuple[Event, ...]:
    """Check each event, and that tensors are freed after they are allocated; leave out what follows the end."""
    live: set[int] = set()
    checked: list[Event] = []
    for index, event in enumerate(events):
        if type(event) is int:
            _check_tensor(index, event, num_tensors, live)
            checked.append(event)
        elif isinstance(event, str):
            _check(event in PHASES, f"events[{index}]: a phase must be one of {', '.join(PHASES)}, but is", event)
            checked.append(event)
        else:
            is_border = isinstance(event, list) and len(event) == 2 and event[0] in BORDERS
            _check(is_border, f"events[{index}]: must be a number, a phase or [border, block], but is", event)
            is_block = _is_count(event[1]) and event[1] < num_blocks
            _check(is_block, f"events[{index}]: a block must be an index below {num_blocks}, but is", event[1])
            checked.append((event[0], event[1]))
    for phase in (STEP, BACKWARD, OPTIMIZER):
        _check(phase in checked, f"events: no step reached the phase {phase!r}; the phases are", _phases(checked))
    return tuple(checked[: checked.index(END) + 1]) if END in checked else tuple(checked)


def _phases(events: Sequence[Event]) -> list[Event]:
    return [event for event in events if isinstance(event, str)]


def _check_tensor(index: int, event: int, num_tensors: int, live: set[int]) -> None:
    tensor = event if event >= 0 else -event - 1
    _check(tensor < num_tensors, f"events[{index}]: a tensor must be an index below {num_tensors}, but is", tensor)
    change: Callable[[int], None] = live.add if event >= 0 else live.discard
    is_possible = (tensor in live) == (event < 0)
    _check(is_possible, f"events[{index}]: {'allocated twice' if event >= 0 else 'freed, but not allocated'}:", tensor)
    change(tensor)
