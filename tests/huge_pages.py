"""Large pages for a process that will be forked often: a fork copies one entry for each page that it has."""

import ctypes
from collections.abc import Iterator

COLLAPSE = 25  # MADV_COLLAPSE of Linux 6.1; an older kernel refuses, and nothing is lost
SIZE = 2 << 20


def collapse() -> None:
    """Put what this process has written until now into pages of 2 MB, where a whole one fits."""
    madvise = ctypes.CDLL(None).madvise
    madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    for first, last in list(_written()):
        first, last = -(-first // SIZE) * SIZE, last // SIZE * SIZE
        if first < last:
            madvise(first, last - first, COLLAPSE)


def _written() -> Iterator[tuple[int, int]]:
    """Yield the addresses of memory that is this process' own, and of no file.

    7f2c4d200000-7f2c4d3c5000 rw-p 00000000 00:00 0    [heap]
    """
    with open("/proc/self/maps") as maps:
        for line in maps:
            addresses, rights, _, _, inode, *name = line.split(None, 5)
            if rights == "rw-p" and inode == "0" and (not name or name[0].strip() == "[heap]"):
                first, last = addresses.split("-")
                yield int(first, 16), int(last, 16)
