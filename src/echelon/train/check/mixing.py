"""Find the operation of a model that mixes rows of its batch, and the line in which it draws numbers."""

import sys
from contextlib import AbstractContextManager
from types import FrameType
from typing import Any, NamedTuple

import torch

from ...pytorch import internals
from ..function_types import Args, Function
from ..global_tensors.arguments import TIME_FIRST
from ..wire import lines
from .part_runs import PartRuns
from .part_ways import dims_of_rows, fits

MOST_NUMBERS = 50_000_000
"""The most numbers of results that are kept for the search."""
_UNSET = "empty"


class _Operation(NamedTuple):
    name: str
    line: lines.SourceLine
    results: list[torch.Tensor]
    has_inputs: bool
    layer: str
    """The layer that expects time in the first dim, and computes this; empty for none."""


class Mixing(NamedTuple):
    """Where a model mixes rows."""

    what: str
    layer: str = ""
    """The layer that expects time in the first dim, if it is there."""


class _Recorder(internals.DispatchMode):  # type: ignore[misc]
    """Keeps the results of all operations."""

    def __init__(self) -> None:
        super().__init__()
        self.operations: list[_Operation] = []
        self._num_numbers = 0

    def __torch_dispatch__(self, func: Function, types: object, args: Args = (), kwargs: Any = None) -> object:
        result = func(*args, **(kwargs or {}))
        name = str(internals.schema_of(func).name).rpartition("::")[2]
        tensors = [one for one in (result if isinstance(result, (tuple, list)) else [result]) if _is_kept(one)]
        self._num_numbers += sum(one.numel() for one in tensors)
        if self._num_numbers <= MOST_NUMBERS:
            has_inputs = any(isinstance(one, (torch.Tensor, list)) for one in args)
            kept = [one.detach().clone() for one in tensors]
            self.operations.append(_Operation(name, lines.of_script(), kept, has_inputs, _time_first()))
        return result


def first_of(runs: PartRuns) -> Mixing:
    """Return the operation of a model that mixes rows."""
    every = []
    for place in range(3):
        recorder = _Recorder()
        runs.compute(place, recorder)
        every.append(recorder.operations)
    pairs = ""
    for three in zip(*every, strict=False):
        name, line, layer = three[0].name, three[0].line, three[0].layer
        if len({one.name for one in three}) > 1 or len({len(one.results) for one in three}) > 1:
            return Mixing(pairs or _told(name, line, "it takes another way for another batch"), layer)
        for results in zip(*(one.results for one in three), strict=False):
            if not pairs and len(dims_of_rows(list(results), runs.sizes)) > 1 and three[0].has_inputs:
                pairs = _told(name, line, "it computes a number for each pair of samples")
            if _mixes(three[0], results, runs):
                return Mixing(pairs or _told(name, line, "it gives other numbers for a part of the batch"), layer)
    shortest = min(map(len, every))
    more = next((one[shortest] for one in every if len(one) > shortest), None)
    if more is not None and not pairs:
        pairs = _told(more.name, more.line, "it takes another way for another batch")
    return Mixing(pairs or "gives other numbers for a part of its batch, and each rank has only its own samples")


def _time_first() -> str:
    frame = sys._getframe(2)
    while frame.f_back is not None and not lines.is_of_script(frame):
        owner = frame.f_locals.get("self")
        if isinstance(owner, TIME_FIRST) and not owner.batch_first:
            return type(owner).__name__
        frame = frame.f_back
    return ""


def _mixes(operation: _Operation, results: tuple[torch.Tensor, ...], runs: PartRuns) -> bool:
    if not operation.has_inputs or operation.name.startswith((_UNSET, "new_" + _UNSET)):
        return False
    if not results[0].is_floating_point():
        return False  # an offset, or an index: what is computed with it shows whether it mixes
    return fits(results[0], results[1], results[2], runs.sizes) == set()


def _told(name: str, line: lines.SourceLine, how: str) -> str:
    return "mixes the samples of its batch in {}(), at {}: {}, and each rank has only its own samples".format(
        name.strip("_"), line, how,
    )  # fmt: skip


def _is_kept(value: object) -> bool:
    return isinstance(value, torch.Tensor) and value.layout == torch.strided


def drawn(runs: PartRuns) -> str:
    """Return the first line in which a model draws numbers."""
    watch = _Watch(runs)
    runs.compute(0, watch)
    return watch.line or "a line that echelon cannot name"


class _Watch(AbstractContextManager[None]):
    """Looks at the states of all generators after each line that is neither of PyTorch nor of Python's library."""

    def __init__(self, runs: PartRuns) -> None:
        self._runs = runs
        self._states: list[int] = []
        self._last = ""
        self._before: Any = None
        self.line = ""

    def __enter__(self) -> None:
        self._before = sys.gettrace()
        self._states = self._runs.states()
        sys.settrace(self._look)

    def __exit__(self, *_: object) -> None:
        sys.settrace(self._before)

    def _look(self, frame: FrameType, event: str, _: object) -> Any:
        if self.line or not lines.is_of_script(frame):
            return None
        if event in ("line", "return"):
            if self._last and self._runs.states() != self._states:
                self.line = self._last
            self._last = str(lines.of_frame(frame))
        return self._look
