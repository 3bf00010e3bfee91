"""Random numbers that the script itself draws in its loop: data of an epoch, a shuffled order, noise.

They are drawn again while the loop is repeated. What is left out then (loaders, models) has drawn from the same
generator in between, so the journal keeps how far it had come wherever that shows.

Functions of PyTorch that the script calls: selections by masks, and draws of random numbers.

The shape of tensor[mask] depends on values, so the journal keeps it. draws.py tells about random numbers.

`Tensor.__getitem__` cannot be replaced: torch.tensor([scalar, …]) would take scalars for sequences from then on. A mode
of torch functions sees it too. It is left wherever the journal keeps nothing, as inside of models.

Python's and numpy's generators, from which a loader draws that is left out while the loop is repeated.

The script may draw from the same generators: an order of samples, a coin. So the journal keeps the states after a
batch has been loaded, wherever they have changed. States mostly differ in one word, the position in the others.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from ...pytorch import internals
from ..global_tensors.tensors import tensors_of
from ..rng import states as random_states
from .tape import LIBRARIES, SIDE, TORCH, Journal

_MOST_WORDS = 64
"""A state that differs in more words is kept whole."""
_FUNCTIONS = ("bernoulli", "binomial", "initial_seed", "multinomial", "normal", "poisson", "randperm", "rrelu", "seed")
_LIKE = ("rand", "randint", "randn")
_IN_PLACE = ("bernoulli", "cauchy", "exponential", "geometric", "log_normal", "normal", "random", "rrelu", "uniform")
_NAMES = {*_FUNCTIONS, *_LIKE, *(name + "_like" for name in _LIKE), *(name + "_" for name in _IN_PLACE)}


def is_draw(func: object) -> bool:
    """Say whether a function of PyTorch draws random numbers.

    >>> is_draw(torch.randn), is_draw(torch.Tensor.normal_), is_draw(torch.zeros)
    (True, True, False)
    """
    return getattr(func, "__name__", "") in _NAMES


class ScriptDraws:
    """Keeps the generator of the CPU as the script's own draws find it."""

    def __init__(self, tape: Journal) -> None:
        self._tape = tape
        self._known: torch.Tensor | None = None
        """The state that a repeated loop has before the next draw; None: not known."""

    def begin(self) -> None:
        self._known = _words()

    @contextmanager
    def drawing(self, *, of_tensors: bool) -> Iterator[None]:
        """Surround a draw. One `of_tensors` may have no values in a repeated loop, so it counts as none there."""
        tape = self._tape
        if tape.is_playing:
            tape.restore_generators()
            before = torch.get_rng_state()
            yield
            if of_tensors:
                torch.set_rng_state(before)
        elif tape.is_recording:
            with tape.paused():
                before = _words()
                entry = self._entry(before)
            if entry is not None:
                tape.keep(SIDE, [TORCH, *entry])
            yield
            with tape.paused():
                self._known = before if of_tensors else _words()
        else:
            yield

    def go_on(self) -> None:
        """Keep the next state whole: the loop is computed from here on."""
        self._known = None

    def _entry(self, words: torch.Tensor) -> list[Any] | None:
        """Return the places that differ from the known state, and their words; None: the state is the known one."""
        if self._known is None:
            return [[], words]
        places = (words != self._known).nonzero().flatten()
        if len(places) > _MOST_WORDS:
            return [[], words]
        return [places.tolist(), words[places]] if len(places) else None


def _words() -> torch.Tensor:
    return torch.get_rng_state().view(torch.int64)


def put(entry: list[Any]) -> None:
    places, words = entry
    if places:
        whole = _words()
        whole[places] = words
        words = whole
    torch.set_rng_state(words.view(torch.uint8))


_KIND = "a selection by a mask"
_GET = torch.Tensor.__getitem__


class Masks(TorchFunctionMode):
    def __init__(self, tape: Journal) -> None:
        super().__init__()
        self._tape = tape
        self._is_on = False
        self.draws = ScriptDraws(tape)

    def switch(self, *, is_on: bool) -> None:
        """Enter or leave the mode; where the script has entered another one since, stay."""
        if is_on == self._is_on:
            return
        if is_on:
            internals.push_function_mode(self)
        elif internals.innermost_function_mode() is self:
            internals.pop_function_mode()
        else:
            return
        self._is_on = is_on

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        tape = self._tape
        if is_draw(func) and tape.is_here:
            with self.draws.drawing(of_tensors=bool(tensors_of([args, kwargs]))):
                return func(*args, **kwargs)
        if func is not _GET or not tape.is_here or not _has_mask(args[1]):
            return func(*args, **kwargs)
        if tape.is_playing:
            return tape.forms.hollow(tape.play(_KIND))
        selected = func(*args, **kwargs)
        if tape.is_recording:
            tape.keep(_KIND, tape.forms.note(selected))
        return selected


def _has_mask(index: object) -> bool:
    if isinstance(index, torch.Tensor):
        return index.dtype in (torch.bool, torch.uint8)
    return isinstance(index, (tuple, list)) and any(map(_has_mask, index))


class LeftDraws:
    """Watches what is left out for draws with Python's random and numpy."""

    def __init__(self, tape: Journal) -> None:
        self._tape = tape
        self._before: Any = None
        self._known: list[int] | None = None
        tape.put_side = self._put

    def switch(self, *, is_left: bool) -> None:
        """Look at the beginning (True) and at the end of what is left out."""
        if not self._tape.is_recording_at_home:
            return
        if is_left:
            self._before = random_states.keep()
        elif self._before is not None and not random_states.is_same(self._before, random_states.keep()):
            self._tape.keep(SIDE, [LIBRARIES, *self._entry()])

    def _entry(self) -> list[Any]:
        words, rest = _apart(random_states.portable())
        known, self._known = self._known, words
        if known is None or len(known) != len(words):
            return [rest, words, []]
        places = [place for place, pair in enumerate(zip(known, words, strict=False)) if pair[0] != pair[1]]
        if len(places) > _MOST_WORDS:
            return [rest, words, []]
        return [rest, [words[place] for place in places], places]

    def _put(self, entry: list[Any]) -> None:
        """Set the generators of an entry: the one of torch, or those of Python and numpy."""
        if entry[0] == TORCH:
            put(entry[1:])
            return
        rest, words, places = entry[1:]
        if places or not words:
            whole = list(self._known or ())
            for place, word in zip(places, words, strict=False):
                whole[place] = word
            words = whole
        self._known = words
        random_states.put_portable(_together(words, rest))

    def go_on(self) -> None:
        """Keep the next states whole: the loop is computed from here on."""
        self._known = None


def _apart(states: list[Any]) -> "tuple[list[int], list[Any]]":
    """Return the words of both generators, and everything else.

    >>> import random
    >>> words, rest = _apart([random.Random(3).getstate(), None])
    >>> _together(words, rest)[0] == random.Random(3).getstate()
    True
    """
    (version, words, normal), numpy = states
    own = [] if numpy is None else [int(one) for one in numpy[1]]
    others = None if numpy is None else [str(numpy[0]), int(numpy[2]), int(numpy[3]), float(numpy[4])]
    return [*words, *own], [version, len(words), normal, others]


def _together(words: list[int], rest: list[Any]) -> list[Any]:
    version, num_own, normal, others = rest
    python = (version, tuple(words[:num_own]), normal)
    return [python, None if others is None else (others[0], words[num_own:], *others[1:])]
