"""The pulse of a rank: a page of memory that it shares with its agent, and the stacks that it writes on a signal.

The file of a pulse begins with the page: the steps so far, their first and last moment, how many of them took how
long, and what `train.measuring` knows of them; from 8 KiB on the last collectives (`call_page`), from 16 KiB on the
lines of the script (`line_sampler`), and from 48 KiB on notes of bad steps. The stacks of all threads follow the page.
`faulthandler` writes them from C, also while the rank waits in C, or while another thread holds Python's lock.
"""

import faulthandler
import fcntl
import itertools
import math
import mmap
import os
import signal
import struct
import sys
import time
from _thread import get_ident
from typing import Any, Callable, Dict, MutableMapping, Sequence

from ..environment import digits
from .line_sampler import LineSampler

VARIABLE = "ECHELON_PULSE_FD"
SIGNAL = (
    signal.SIGRTMIN + 11 if hasattr(signal, "SIGRTMIN") else 0
)  # libraries and sites send USR1, USR2 and few others
PAGE_BYTES = 1 << 16  # the largest page of the kernels that run on compute nodes; `sampler` has a part of it
MAIN_THREAD, DESCRIPTOR, FIRST_AT, LAST_AT, STEPS = range(5)
"""The words of the page: the id of the main thread, 1 + the descriptor (0: not armed), in nanoseconds of the monotonic
clock the ends of the first and of the last step, and the number of steps.
"""
TIMES = 64  # the first of the words that count steps by their time, see `bucket`
BUCKET_BITS = 3
NUM_BUCKETS = 64 << BUCKET_BITS
MEASURES = (
    "data_seconds", "backward_seconds", "communication_seconds", "optimizer_seconds", "save_seconds",
    "check_seconds", "compile_seconds", "graphs", "samples", "tokens", "elements", "loader_workers", "loss",
    "losses_not_finite", "own_squares", "peak_allocated_bytes", "peak_reserved_bytes", "passes", "threads",
)  # fmt: skip
"""What a rank measures from its first step on: floating-point numbers; not a number: it is unknown."""
NOT_OWN = ("communication_seconds", "check_seconds")
"""The parts of a step that are not the rank's own: its waits, and the comparisons, in which rank 0 computes for all."""
MEASURED = TIMES + NUM_BUCKETS  # the word that is 1 once the words behind it hold the measures
NOTES = 6144
"""The word with the number of bytes of the notes that follow it: what a rank says of bad steps, as a JSON list."""
MOST_NOTES_BYTES = (16 << 10) - 8
DESCRIPTOR_OF_RANK = 200
CRASH = "Fatal Python error: "
"""The begin of what `faulthandler` writes behind the page when a fatal signal ends the rank, before its stack."""
_OPEN_MPI = "OMPI_COMM_WORLD_SIZE"  # Open MPI warns of each handler of a fatal signal that is not its own
_TORCH = "torch"
Measuring = Callable[
    [Sequence[str], Callable[[Sequence["float | None"]], None], Callable[..., None], Callable[[str], None], int], bool
]
"""Measures this process: after each step it calls the third argument, and gives the second one the values of the names.

The fourth one gets the notes about bad steps, the last one is the descriptor of the page, for `call_page`. It returns
False if it does not know this PyTorch, and then does nothing.
"""


def words(descriptor: int) -> "memoryview":
    """Map the page of a pulse; its 64-bit words are numbers that both processes see."""
    return memoryview(mmap.mmap(descriptor, PAGE_BYTES)).cast("Q")


def variable(descriptor: int) -> Dict[str, str]:
    """Return the variable that tells a rank its inherited descriptor, and which file that is."""
    return {VARIABLE: "%d:%d" % (descriptor, os.fstat(descriptor).st_ino)}


def take(environ: MutableMapping[str, str], measuring: "Callable[[], Measuring]") -> None:
    """Arm this rank with the inherited descriptor of the environment, if it is still that file."""
    number, _, file = environ.pop(VARIABLE, "").partition(":")
    if not (digits.is_number(number) and digits.is_number(file)):
        return
    try:
        if os.fstat(int(number)).st_ino != int(file):
            return
        os.set_inheritable(int(number), False)
    except OSError:
        return  # a child of the rank has the variable, but not the descriptor
    arm(int(number), measuring)


def arm(descriptor: int, measuring: "Callable[[], Measuring]") -> None:
    """Count and measure the optimizer steps of this process in the page, and write all stacks on the signal.

    `measuring` imports what measures, once PyTorch is imported.
    """
    descriptor = _moved(descriptor)
    _write(descriptor, MAIN_THREAD, get_ident())
    if SIGNAL:
        os.lseek(descriptor, PAGE_BYTES, os.SEEK_SET)
        faulthandler.register(SIGNAL, file=descriptor, all_threads=True, chain=False)
        _write(descriptor, DESCRIPTOR, descriptor + 1)
    if not faulthandler.is_enabled() and _OPEN_MPI not in os.environ:
        faulthandler.enable(file=descriptor, all_threads=False)
        os.register_at_fork(after_in_child=faulthandler.disable)
    sampler = LineSampler(descriptor)
    sampler.begin()

    def begin() -> None:
        count = _counter(descriptor, sampler)
        if not measuring()(MEASURES, _measured(descriptor), count, _telling(descriptor), descriptor):
            _hook(count)

    if _TORCH in sys.modules:
        begin()
    else:
        sys.meta_path.insert(0, _UntilTorch(begin))


def _moved(descriptor: int) -> int:
    """Give a descriptor a number that scripts do not count on."""
    try:
        moved = fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, DESCRIPTOR_OF_RANK)
    except OSError:
        return descriptor  # the limit of open files is lower
    os.close(descriptor)
    return moved


def _write(descriptor: int, word: int, value: int) -> None:
    """Write a word of the page; a page that is mapped here would have a second descriptor."""
    os.pwrite(descriptor, value.to_bytes(8, sys.byteorder), word * 8)


def bucket(nanoseconds: int) -> int:
    """Return the bucket of a time: eight for each power of two, so that two times in one differ by 12 % at most.

    >>> bucket(1_000_000), bucket(1_100_000), bucket(2_000_000)
    (159, 160, 167)
    """
    shift = max(nanoseconds.bit_length() - 1 - BUCKET_BITS, 0)
    return ((shift + BUCKET_BITS - 1) << BUCKET_BITS) + max(nanoseconds >> shift, 1 << BUCKET_BITS)


def seconds_of(number: int) -> float:
    """Return the middle of a bucket.

    >>> round(seconds_of(159), 4)
    0.001
    """
    power, eighth = number >> BUCKET_BITS, number & ((1 << BUCKET_BITS) - 1)
    return float((1 << power) * (1 + (eighth + 0.5) / (1 << BUCKET_BITS)) / 1e9)


def _counter(descriptor: int, sampler: LineSampler) -> Callable[..., None]:
    numbers = itertools.count(1)
    counts = [0] * NUM_BUCKETS
    both, at = struct.Struct("=QQ").pack, LAST_AT * 8  # STEPS is the word behind LAST_AT
    last = 0

    def count(*_: Any) -> None:
        nonlocal last
        now = time.monotonic_ns()
        if last:
            number = bucket(now - last)
            counts[number] += 1
            _write(descriptor, TIMES + number, counts[number])
        else:
            _write(descriptor, FIRST_AT, now)
        last = now
        sampler.steps = next(numbers)
        sampler.resume()
        os.pwrite(descriptor, both(now, sampler.steps), at)

    return count


def _measured(descriptor: int) -> "Callable[[Sequence[float | None]], None]":
    pack, at, missing = struct.Struct("=Q%dd" % len(MEASURES)).pack, MEASURED * 8, math.nan

    def write(values: "Sequence[float | None]") -> None:
        os.pwrite(descriptor, pack(1, *[missing if value is None else value for value in values]), at)

    return write


def _telling(descriptor: int) -> "Callable[[str], None]":
    def tell(text: str) -> None:
        content = text.encode()
        if len(content) <= MOST_NOTES_BYTES:
            os.pwrite(descriptor, content, (NOTES + 1) * 8)
            _write(descriptor, NOTES, len(content))

    return tell


def _hook(count: Callable[..., None]) -> None:
    """Count the steps of a PyTorch that echelon does not know, if it tells of them."""
    optimizers: Any = sys.modules.get("torch.optim.optimizer")
    register = getattr(optimizers, "register_optimizer_step_post_hook", None)
    if register is not None:
        register(count)


class _UntilTorch:
    """Call a function once PyTorch is imported: Python asks this object for each new module."""

    def __init__(self, act: Callable[[], None]) -> None:
        self._act = act

    def find_spec(self, name: str, path: "Sequence[str] | None" = None, target: Any = None) -> Any:
        """Return PyTorch's spec as other finders know it, with a loader that then calls the function; find no other."""
        if name != _TORCH:
            return None
        sys.meta_path[:] = [finder for finder in sys.meta_path if finder is not self]
        for finder in sys.meta_path:
            spec = finder.find_spec(name, path, target) if hasattr(finder, "find_spec") else None
            if spec is not None:
                self._extend(spec.loader)
                return spec
        return None

    def _extend(self, loader: Any) -> None:
        original = getattr(loader, "exec_module", None)
        if original is None:
            return

        def exec_module(module: Any) -> None:
            original(module)
            self._act()

        loader.exec_module = exec_module
