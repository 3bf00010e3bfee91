"""Python's and numpy's generators, from which a loader draws that is left out while the loop is repeated.

The script may draw from the same generators: an order of samples, a coin. So the journal keeps the states after a
batch has been loaded, wherever they have changed. States mostly differ in one word, the position in the others.
"""

from typing import Any, List, Optional

from ..rng import states as random_states
from . import draws
from .tape import LIBRARIES, SIDE, TORCH, Tape

_MOST_WORDS = 64


class LeftDraws:
    """Watches what is left out for draws with Python's random and numpy."""

    def __init__(self, tape: Tape) -> None:
        self._tape = tape
        self._before: Any = None
        self._known: Optional[List[int]] = None
        tape.put_side = self._put

    def switch(self, *, is_left: bool) -> None:
        """Look at the beginning (True) and at the end of what is left out."""
        if not self._tape.is_recording_at_home:
            return
        if is_left:
            self._before = random_states.keep()
        elif self._before is not None and not random_states.is_same(self._before, random_states.keep()):
            self._tape.keep(SIDE, [LIBRARIES, *self._entry()])

    def _entry(self) -> List[Any]:
        """Return the words that differ from those kept last, or all of them."""
        words, rest = _apart(random_states.portable())
        known, self._known = self._known, words
        if known is None or len(known) != len(words):
            return [rest, words, []]
        places = [place for place, pair in enumerate(zip(known, words)) if pair[0] != pair[1]]  # noqa: B905
        if len(places) > _MOST_WORDS:
            return [rest, words, []]
        return [rest, [words[place] for place in places], places]

    def _put(self, entry: List[Any]) -> None:
        """Set the generators of an entry: the one of torch, or those of Python and numpy."""
        if entry[0] == TORCH:
            draws.put(entry[1:])
            return
        rest, words, places = entry[1:]
        if places or not words:
            whole = list(self._known or ())
            for place, word in zip(places, words):  # noqa: B905
                whole[place] = word
            words = whole
        self._known = words
        random_states.put_portable(_together(words, rest))

    def go_on(self) -> None:
        """Keep the next states whole: the loop is computed from here on."""
        self._known = None


def _apart(states: List[Any]) -> "tuple[List[int], List[Any]]":
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


def _together(words: List[int], rest: List[Any]) -> List[Any]:
    version, num_own, normal, others = rest
    python = (version, tuple(words[:num_own]), normal)
    return [python, None if others is None else (others[0], words[num_own:], *others[1:])]
