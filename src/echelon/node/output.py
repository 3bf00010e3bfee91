"""The output of a rank: into its log file and to the live console, without losing a byte.

What is not in the log yet is where the guard finds it if this process is killed.
"""

import errno
import mmap
import os
import time
from typing import Callable, Dict

from . import secret

LOG_BUFFER_BYTES = 1 << 16
READ_BYTES = 1 << 16
TAIL_BYTES = 1 << 14

Forward = Callable[[str, bytes], None]


class RankOutput:
    """The two pipes of one rank, and its log file, which gets both streams in the order of arrival."""

    def __init__(self, log_path: str, forward: "Forward | None") -> None:
        self.path = log_path
        self._log = os.open(log_path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        self.buffer = KeptBytes(secret.new_file("echelon-output"), LOG_BUFFER_BYTES + READ_BYTES)
        self._forward = forward
        self.pipes: Dict[int, str] = {}  # reading end → "stdout" or "stderr"
        self.num_bytes = 0
        self.tail = bytearray()
        self.error_time = 0.0
        self.log_problem = ""

    def open_pipes(self) -> "tuple[int, int]":
        """Create both pipes; return the write ends of stdout and stderr."""
        writing = []
        for stream in ("stdout", "stderr"):
            reading, end = os.pipe()
            os.set_blocking(reading, False)
            self.pipes[reading] = stream
            writing.append(end)
        return writing[0], writing[1]

    def descriptors(self) -> "list[int]":
        """Return the descriptors of the buffer and of both pipes, with which another process can end the log."""
        return [self.buffer.descriptor, *self.pipes]

    def read(self, pipe: int) -> bool:
        """Read one portion of a pipe; return whether there may be more."""
        try:
            data = os.read(pipe, READ_BYTES)
        except BlockingIOError:
            return False
        except OSError:
            data = b""
        if not data:
            self.close_pipe(pipe)
            return False
        stream = self.pipes[pipe]
        self._keep(stream, data)
        if self._forward is not None:
            self._forward(stream, data)
        return True

    def _keep(self, stream: str, data: bytes) -> None:
        self.num_bytes += len(data)
        self.buffer.add(data)
        if len(self.buffer) >= LOG_BUFFER_BYTES:
            self.flush()
        self.tail += data
        del self.tail[:-TAIL_BYTES]
        if stream == "stderr" and b"Traceback (most recent call last)" in data:
            # the exit may come a second later, because torch shuts down slowly
            self.error_time = time.time()

    def flush(self) -> None:
        while self.buffer:
            try:
                written = os.write(self._log, self.buffer.content())
            except OSError as error:
                self.log_problem = "%s: %s" % (errno.errorcode.get(error.errno or 0, "?"), error.strerror)
                written = len(self.buffer)  # a full disk must not end the training
            self.buffer.drop(written)

    def close_pipe(self, pipe: int) -> None:
        self.pipes.pop(pipe, None)
        os.close(pipe)

    def close(self) -> None:
        """Read the rest, write the log, and close everything."""
        for pipe in list(self.pipes):
            while pipe in self.pipes and self.read(pipe):
                pass
            if pipe in self.pipes:
                self.close_pipe(pipe)
        self.flush()
        self.buffer.close()
        os.close(self._log)

    def remove_if_empty(self) -> None:
        try:
            if os.path.getsize(self.path) == 0:
                os.unlink(self.path)
        except FileNotFoundError:
            pass  # another agent of this node has removed it


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
        return self._memory[_LENGTH_BYTES : _LENGTH_BYTES + self._length]

    def drop(self, number: int) -> None:
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
