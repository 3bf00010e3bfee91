"""Bytes in an unnamed file: another process can still read them after this one was killed."""

import mmap
import os

_LENGTH_BYTES = 8


class KeptBytes:
    """A buffer of at most `capacity` bytes in a file without a name, whose descriptor it takes over.

    >>> buffer = KeptBytes(os.memfd_create("example"), 16)
    >>> buffer.add(b"one two")
    >>> buffer.drop(4)
    >>> len(buffer), left_in(buffer.descriptor)
    (3, b'two')
    """

    def __init__(self, descriptor: int, capacity: int) -> None:
        self.descriptor = descriptor
        os.ftruncate(descriptor, _LENGTH_BYTES + capacity)
        self._memory = mmap.mmap(descriptor, _LENGTH_BYTES + capacity)
        self._length = 0

    def __len__(self) -> int:
        return self._length

    def add(self, data: bytes) -> None:
        """Append bytes; their number follows them, so that a reader never sees a part."""
        begin = _LENGTH_BYTES + self._length
        self._memory[begin : begin + len(data)] = data
        self._set_length(self._length + len(data))

    def content(self) -> bytes:
        """Return all bytes."""
        return self._memory[_LENGTH_BYTES : _LENGTH_BYTES + self._length]

    def drop(self, number: int) -> None:
        """Remove the first bytes."""
        rest = self.content()[number:]
        self._memory[_LENGTH_BYTES : _LENGTH_BYTES + len(rest)] = rest
        self._set_length(len(rest))

    def close(self) -> None:
        """Give the memory back."""
        self._memory.close()
        os.close(self.descriptor)

    def _set_length(self, length: int) -> None:
        self._length = length
        self._memory[:_LENGTH_BYTES] = length.to_bytes(_LENGTH_BYTES, "little")


def left_in(descriptor: int) -> bytes:
    """Return what a process that was killed has left in its buffer."""
    length = int.from_bytes(os.pread(descriptor, _LENGTH_BYTES, 0), "little")
    return os.pread(descriptor, length, _LENGTH_BYTES)
