"""Generators without a seed, and random names: they get the run's own seed, so that all ranks do the same.

Only the script's own calls are replaced; a library's secret stays a secret. The loading of a rank's own samples draws
the rank's own numbers, also in the workers of a DataLoader, whose seed shows whose samples they load.
"""

import hashlib
import sys
import uuid
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch.utils.data import get_worker_info

from ..function_types import Function
from ..patches import Hooks
from ..wire.lines import is_called_by_script
from .generators import Generators

_BITS = 128
_WHY = "A generator that the script gives no seed draws the same numbers on all ranks."
_WHY_NAMES = "A name or a coin that the script draws is the same on all ranks."
_CLASSES_OF_NUMPY = ("RandomState", "MT19937", "PCG64", "PCG64DXSM", "Philox", "SFC64", "SeedSequence")


class SharedEntropy:
    """Numbers in place of the system's entropy; they are equal on all ranks if all ranks ask in the same order."""

    def __init__(self, seed: int, rank: int, generators: Generators) -> None:
        self._seed = seed
        self._rank = rank
        self._generators = generators
        self._num_given: dict[str, int] = {}

    def next(self, num_bits: int = _BITS) -> int:
        worker = get_worker_info()
        if worker is not None:
            whose = f"worker {torch.initial_seed()}"  # differs between ranks, unless each rank loads whole batches
        else:
            whose = f"rank {self._rank}" if self._generators.is_own else "all"
            self._generators.note_drawn()
        number = self._num_given[whose] = self._num_given.get(whose, 0) + 1
        text = f"{self._seed} {whose} {number}"
        digest = b"".join(
            hashlib.sha256(b"%d %s" % (part, text.encode())).digest() for part in range(num_bits // 256 + 1)
        )
        return int.from_bytes(digest, "big") >> (len(digest) * 8 - num_bits)


def install(seeds: SharedEntropy) -> None:
    hooks = Hooks()
    for module, name in (("random", "Random.seed"), ("random", "seed")):
        hooks.replace(module, name, partial(_seeded, seeds, place=1 if "." in name else 0), why=_WHY)
    hooks.replace("numpy.random", "seed", partial(_seeded, seeds, num_bits=32), why=_WHY)
    hooks.replace("numpy.random", "default_rng", partial(_seeded, seeds), why=_WHY)
    for name in _CLASSES_OF_NUMPY:
        _replace_class(hooks, "numpy.random", name, _seeded_class(seeds))
    for module in ("torch", "torch.random"):
        hooks.replace(module, "seed", lambda _: _seed_torch(seeds), why=_WHY)
    _replace_class(hooks, "torch", "Generator", _seeded_generator(seeds))
    _install_secrets(seeds, hooks)
    hooks.apply()


def _install_secrets(seeds: SharedEntropy, hooks: Hooks) -> None:
    """Make the names and coins that the script draws equal on all ranks; secrets of libraries stay secrets."""

    def drawn(num_bytes: Any = None) -> bytes:
        size = 32 if num_bytes is None else num_bytes
        return seeds.next(8 * size).to_bytes(size, "big")

    def url(num_bytes: object = None) -> str:
        import base64

        return base64.urlsafe_b64encode(drawn(num_bytes)).rstrip(b"=").decode()

    rows: tuple[tuple[str, str, Function], ...] = (
        ("uuid", "uuid4", lambda: uuid.UUID(int=seeds.next(), version=4)),
        ("uuid", "uuid1", lambda *_, **__: uuid.UUID(int=seeds.next(), version=1)),
        ("os", "urandom", drawn),
        ("secrets", "token_bytes", drawn),
        ("secrets", "token_hex", lambda size=None: drawn(size).hex()),
        ("secrets", "token_urlsafe", url),
        ("secrets", "randbelow", lambda bound: seeds.next(_BITS + int(bound).bit_length()) % bound),
        ("secrets", "randbits", seeds.next),
        ("secrets", "choice", lambda values: values[seeds.next() % len(values)]),
    )
    for module, name, instead in rows:
        hooks.replace(module, name, partial(_by_script, instead), why=_WHY_NAMES)


def _by_script(instead: Callable[..., object], original: Callable[..., object]) -> Function:
    def draw(*args: object, **kwargs: object) -> Any:
        return (instead if is_called_by_script(sys._getframe(1)) else original)(*args, **kwargs)

    return draw


def _seeded(seeds: SharedEntropy, original: Function, *, place: int = 0, num_bits: int = _BITS) -> Function:
    """Pass a seed to a function where the script passes none."""

    def seeded(*args: object, **kwargs: object) -> object:
        if all(one is None for one in (*args[place:], *kwargs.values())) and _is_wanted_by_script(sys._getframe(1)):
            return original(*args[:place], seeds.next(num_bits))
        return original(*args, **kwargs)

    return seeded


def _is_wanted_by_script(frame: Any) -> bool:
    """Say whether the script's own line wants a seed, directly or through the constructor of random.Random."""
    while frame.f_code.co_name == "__init__" and frame.f_globals.get("__name__") == "random" and frame.f_back:
        frame = frame.f_back
    return is_called_by_script(frame)


class _Known:
    """The metaclass of a class that replaces another: instances of the original class are its instances too."""

    original: Function

    def __instancecheck__(cls, value: object) -> bool:  # noqa: N805
        is_ours = "original" in cls.__dict__
        return isinstance(value, cls.original) if is_ours else type.__instancecheck__(cls, value)  # type: ignore[arg-type]


def _stand_in(original: Callable[..., object], names: dict[str, Any]) -> Any:
    kind: Any = type("_Known", (_Known, type(original)), {})
    return kind(original.__name__, (original,), {"original": original, "__module__": original.__module__, **names})


def _replace_class(hooks: Hooks, module: str, name: str, stand_in: Callable[[object], object]) -> None:
    def act(imported_module: object) -> None:
        original = getattr(imported_module, name, None)
        if original is not None:
            hooks.put(imported_module, name, original, stand_in(original), why=_WHY)

    hooks.when_imported(module, act, why=_WHY, attribute=name)


def _seeded_class(seeds: SharedEntropy) -> Callable[[object], object]:
    def stand_in(original: Any) -> object:
        def new(cls: object, *args: object, **kwargs: object) -> Any:
            values = (*args, *kwargs.values())
            if "original" not in cls.__dict__:  # a class of the script's own
                return original.__new__(cls, *args, **kwargs)
            if all(one is None for one in values) and is_called_by_script(sys._getframe(1)):
                return original(seeds.next(32))
            return original(*args, **kwargs)

        return _stand_in(original, {"__new__": new})

    return stand_in


def _seed_torch(seeds: SharedEntropy) -> Callable[[], int]:
    def seed() -> int:
        number = seeds.next(63)
        torch.manual_seed(number)
        return number

    return seed


def _seeded_generator(seeds: SharedEntropy) -> Callable[[Any], Any]:
    def seed(self: Any) -> int:
        number = seeds.next(63)
        self.manual_seed(number)
        return number

    return lambda original: _stand_in(original, {"seed": seed})
