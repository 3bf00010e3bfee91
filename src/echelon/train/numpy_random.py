"""The state of numpy's global generator, which is kept and set again several times in each step.

numpy's own set_state takes 0.1 ms. The generator's memory is public (BitGenerator.ctypes): 624 words and a position.
What is not there is the second of two normal numbers, which numpy keeps when one was asked for; where there is one,
set_state is called.
"""

import ctypes
import sys
from typing import Any, NamedTuple, Optional

_NUM_BYTES = 624 * 4 + 4


class Kept(NamedTuple):
    """A state of the generator."""

    words: bytes
    """Its memory; empty for a generator of another kind."""
    state: Any
    """As numpy gives it."""

    @property
    def is_all_words(self) -> bool:
        """Whether the memory is the whole state."""
        return bool(self.words) and not self.state[3]


def keep() -> Optional[Kept]:
    """Return the state; None where a script has not imported numpy."""
    numpy = sys.modules.get("numpy")
    if numpy is None:
        return None
    address = _address(numpy)
    words = ctypes.string_at(address, _NUM_BYTES) if address else b""
    return Kept(words, numpy.random.get_state(legacy=bool(address)))


def put(kept: Optional[Kept], now: Optional[Kept] = None) -> None:
    """Set a state that was kept; `now` is the present one, where it is known. None leaves everything."""
    numpy = sys.modules.get("numpy")
    if numpy is None or kept is None:
        return
    if kept.is_all_words and now is not None and now.is_all_words:
        ctypes.memmove(_address(numpy), kept.words, _NUM_BYTES)
    else:
        numpy.random.set_state(kept.state)


def is_same(one: Optional[Kept], other: Optional[Kept]) -> bool:
    """Say whether two states that were kept are equal."""
    if one is None or other is None or not one.words or not other.words:
        return str(one) == str(other)
    return one.words == other.words and bool(one.state[3:] == other.state[3:])


def _address(numpy: Any) -> int:
    """Return where the words are; 0 for a generator of another kind."""
    generator: Any = getattr(numpy.random.mtrand._rand, "_bit_generator", None)
    return int(generator.ctypes.state_address) if type(generator).__name__ == "MT19937" else 0
