"""Random numbers that the script itself draws in its loop: data of an epoch, a shuffled order, noise.

They are drawn again while the loop is repeated. What is left out then (loaders, models) has drawn from the same
generator in between, so the journal keeps how far it had come wherever that shows.
"""

from contextlib import contextmanager
from typing import Any, Iterator, List, Optional

import torch

from .tape import SIDE, TORCH, Tape

_MOST_WORDS = 64
"""A state that differs in more words is kept whole."""
_FUNCTIONS = ("bernoulli", "binomial", "initial_seed", "multinomial", "normal", "poisson", "randperm", "rrelu", "seed")
_LIKE = ("rand", "randint", "randn")
_IN_PLACE = ("bernoulli", "cauchy", "exponential", "geometric", "log_normal", "normal", "random", "rrelu", "uniform")
_NAMES = {*_FUNCTIONS, *_LIKE, *(name + "_like" for name in _LIKE), *(name + "_" for name in _IN_PLACE)}


def is_draw(func: Any) -> bool:
    """Say whether a function of PyTorch draws random numbers.

    >>> is_draw(torch.randn), is_draw(torch.Tensor.normal_), is_draw(torch.zeros)
    (True, True, False)
    """
    return getattr(func, "__name__", "") in _NAMES


class ScriptDraws:
    """Keeps the generator of the CPU as the script's own draws find it."""

    def __init__(self, tape: Tape) -> None:
        self._tape = tape
        self._known: Optional[torch.Tensor] = None
        """The state that a repeated loop has before the next draw; None: not known."""

    def begin(self) -> None:
        """Take the state at the beginning of the journal, which is the same in each start of the script."""
        self._known = _words()

    @contextmanager
    def drawing(self) -> Iterator[None]:
        """Surround a draw of the script."""
        tape = self._tape
        if tape.is_playing:
            tape.settle()
            yield
        elif tape.is_recording:
            with tape.left_out():
                entry = self._entry(_words())
            if entry is not None:
                tape.keep(SIDE, [TORCH, *entry])
            yield
            with tape.left_out():
                self._known = _words()
        else:
            yield

    def go_on(self) -> None:
        """Keep the next state whole: the loop is computed from here on."""
        self._known = None

    def _entry(self, words: torch.Tensor) -> Optional[List[Any]]:
        """Return the places that differ from the known state, and their words; None: the state is the known one."""
        if self._known is None:
            return [[], words]
        places = (words != self._known).nonzero().flatten()
        if len(places) > _MOST_WORDS:
            return [[], words]
        return [places.tolist(), words[places]] if len(places) else None


def _words() -> torch.Tensor:
    return torch.get_rng_state().view(torch.int64)


def put(entry: List[Any]) -> None:
    """Set the generator of the CPU to the state of an entry."""
    places, words = entry
    if places:
        whole = _words()
        whole[places] = words
        words = whole
    torch.set_rng_state(words.view(torch.uint8))
