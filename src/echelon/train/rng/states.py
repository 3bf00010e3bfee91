"""The states of Python's and numpy's global generators, which echelon reads and sets several times in each step.

random.getstate and numpy.random.get_state make Python objects of 624 words, in 0.1 ms. Here the words are copied from
memory. A trial with a separate generator finds their address. The address is used only if the trial shows that a copy
has the same state; otherwise the libraries' own functions are called.
"""

import ctypes
import json
import random
import struct
import sys
import zlib
from functools import cache, lru_cache
from typing import Any, NamedTuple

import torch

_NUM_WORDS = 624
_TRIED = 0.123456789


class GeneratorStates(NamedTuple):
    """Both states, as bytes of memory or as the library returns them; numpy's is None if numpy is not imported."""

    python: Any
    numpy: Any


class _Place(NamedTuple):
    """The spans of memory that hold a state."""

    spans: tuple[tuple[int, int], ...]
    """The address and the number of bytes of each span."""

    def read(self) -> bytes:
        return b"".join([ctypes.string_at(*span) for span in self.spans])

    def write(self, words: bytes) -> None:
        at = 0
        for address, size in self.spans:
            ctypes.memmove(address, words[at : at + size], size)
            at += size


def keep() -> GeneratorStates:
    return GeneratorStates(_keep_python(), _keep_numpy())


def put(kept: GeneratorStates) -> None:
    """Set states that `keep` returned in this process; a state of None leaves its generator alone."""
    words, normal = kept.python[0], kept.python[-1]
    if isinstance(words, bytes):
        _place_of_python().write(words)
        random._inst.gauss_next = normal  # type: ignore[attr-defined]
    else:
        random.setstate(kept.python)
    if isinstance(kept.numpy, bytes):
        _place_of_numpy(*_numpy_generators()).write(kept.numpy)
    elif kept.numpy is not None:
        sys.modules["numpy"].random.set_state(kept.numpy)


def is_same(first: GeneratorStates, second: GeneratorStates) -> bool:
    are_bytes = isinstance(first.numpy, bytes) and isinstance(second.numpy, bytes)
    is_numpy_same = first.numpy == second.numpy if are_bytes else str(first.numpy) == str(second.numpy)
    return is_numpy_same and bool(first.python == second.python)


def digest() -> int:
    kept = keep()
    return zlib.crc32(repr((kept.python, kept.numpy)).encode())


def portable() -> list[object]:
    numpy = sys.modules.get("numpy")
    return [random.getstate(), None if numpy is None else numpy.random.get_state()]


def put_portable(states: list[Any]) -> None:
    random.setstate(states[0])
    if states[1] is not None and "numpy" in sys.modules:
        sys.modules["numpy"].random.set_state(states[1])


def _keep_python() -> object:
    place = _place_of_python()
    return (place.read(), random._inst.gauss_next) if place.spans else random.getstate()  # type: ignore[attr-defined]


def _keep_numpy() -> Any:
    if "numpy" not in sys.modules:
        return None
    place = _place_of_numpy(*_numpy_generators())
    return place.read() if place.spans else sys.modules["numpy"].random.get_state(legacy=False)


@cache
def _place_of_python() -> _Place:
    """Return the memory of the words of `random` and of the position before them; no spans if the trial fails."""
    tried, twin = random.Random(1), random.Random(2)
    tried.random()
    words = struct.pack(f"={_NUM_WORDS}I", *tried.getstate()[1][:-1])
    offset = ctypes.string_at(id(tried), tried.__sizeof__()).find(words) - 4
    span = (offset, 4 + len(words))
    if sys.implementation.name != "cpython" or offset < 0:
        return _Place(())
    _Place(_moved(span, twin)).write(_Place(_moved(span, tried)).read())
    if tried.getstate()[1] != twin.getstate()[1]:
        return _Place(())
    return _Place(_moved(span, random._inst))


def _moved(span: tuple[int, int], owner: object) -> tuple[tuple[int, int], ...]:
    return ((id(owner) + span[0], span[1]),)


def _numpy_generators() -> tuple[Any, Any]:
    """Return the generator behind numpy.random's functions, and its bit generator, which a script may replace."""
    generator = sys.modules["numpy"].random.mtrand._rand
    return generator, getattr(generator, "_bit_generator", None)


@lru_cache(maxsize=4)
def _place_of_numpy(generator: object, bits: Any) -> _Place:
    """Return the memory of numpy's words, position and second normal number; no spans if the trial fails.

    The address of the words is public (BitGenerator.ctypes). The generator itself holds the second number of a pair of
    normal numbers, and a flag that says whether there is such a number.
    """
    cls: object = type(generator)
    offset = _offset_of_normal(cls) if type(bits).__name__ == "MT19937" else None
    if offset is None:
        return _Place(())
    return _Place(((bits.ctypes.state_address, 4 * (_NUM_WORDS + 1)), (id(generator) + offset, 16)))


@cache
def _offset_of_normal(cls: type) -> int | None:
    """Return the offset of a generator's second normal number: eight bytes for the flag, then the number."""
    tried, twin = cls(1), cls(2)
    name, words, position = tried.get_state()[:3]
    tried.set_state((name, words, position, 1, _TRIED))
    memory = ctypes.string_at(id(tried), tried.__sizeof__())
    offset = memory.find(struct.pack("=d", _TRIED)) - 8
    if sys.implementation.name != "cpython" or offset < 0 or memory.count(struct.pack("=d", _TRIED)) > 1:
        return None
    twin.set_state((name, words, position, 0, 0.0))
    ctypes.memmove(id(twin) + offset, memory[offset : offset + 16], 16)
    return offset if tried.get_state()[3:] == twin.get_state()[3:] == (1, _TRIED) else None


_NUMPY = "numpy"


def is_generator(value: object) -> bool:
    return isinstance(value, kinds())


def kinds() -> tuple[type, ...]:
    """Return the classes of generators; those of numpy only if it is imported."""
    numpy = sys.modules.get(_NUMPY)
    of_numpy = () if numpy is None else (numpy.random.Generator, numpy.random.RandomState)
    return (torch.Generator, random.Random, *of_numpy)


def state_of(generator: Any) -> list[object]:
    """Return the state of a generator as plain data.

    >>> one = random.Random(3)
    >>> state = state_of(one)
    >>> drawn = one.random()
    >>> put_state(one, state)
    >>> one.random() == drawn
    True
    """
    if isinstance(generator, torch.Generator):
        return ["torch", generator.get_state()]
    if isinstance(generator, random.Random):
        return ["python", generator.getstate()]
    state = generator.get_state(legacy=False) if hasattr(generator, "get_state") else generator.bit_generator.state
    return ["numpy", json.dumps(state, default=lambda array: array.tolist())]  # with whole numbers of 128 bits


def put_state(generator: Any, state: list[Any]) -> None:
    if state[0] == "torch":
        generator.set_state(state[1])
    elif state[0] == "python":
        generator.setstate(state[1])
    elif hasattr(generator, "set_state"):
        generator.set_state(json.loads(state[1]))
    else:
        generator.bit_generator.state = json.loads(state[1])


def of_loader(loader: object) -> list[object]:
    """Return the generators from which a loader and its samplers draw, each once."""
    samplers = [getattr(loader, "sampler", None), getattr(loader, "batch_sampler", None)]
    samplers.append(getattr(samplers[1], "sampler", None))
    found = [getattr(one, "generator", None) for one in (loader, *samplers)]
    return list({id(one): one for one in found if one is not None and is_generator(one)}.values())
