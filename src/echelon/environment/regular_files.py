"""Read files that a person names; never wait for a pipe's writer, a device, or an endless file."""

import errno
import os
import stat
from typing import Any, BinaryIO, Dict, List, Union

MOST_BYTES = 16 << 20  # the largest file that people write: scripts, host files, settings
_PART_BYTES = 1 << 18
_OPEN_ALREADY = ("/dev/fd/", "/proc/self/fd/", "/dev/stdin")  # bash's names for <(command)

Path = Union[str, "os.PathLike[str]"]


def read(path: Path, *, most_bytes: int = MOST_BYTES) -> bytes:
    """Return the bytes of a regular file; raise OSError, whose strerror says why it cannot be read."""
    with opened(path) as file:
        return read_stream(file, most_bytes=most_bytes)


def first_line(path: Path, *, most_bytes: int = 1 << 16) -> str:
    """Return the first line of a file, however long the file is; raise OSError like `read`."""
    with opened(path) as file:
        return file.readline(most_bytes).decode("utf-8", "replace")


def opened(path: Path) -> BinaryIO:
    """Open a regular file; raise OSError, whose strerror says why it cannot be read."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    mode = os.fstat(descriptor).st_mode
    if stat.S_ISFIFO(mode) and os.fspath(path).startswith(_OPEN_ALREADY):
        os.set_blocking(descriptor, True)
    elif not stat.S_ISREG(mode) and not os.path.samefile(descriptor, os.devnull):
        os.close(descriptor)
        number = errno.EISDIR if stat.S_ISDIR(mode) else errno.EINVAL
        raise OSError(number, os.strerror(number) if stat.S_ISDIR(mode) else "it is not a regular file", path)
    return os.fdopen(descriptor, "rb")


def read_stream(stream: BinaryIO, *, most_bytes: int = MOST_BYTES) -> bytes:
    """Return the content of a stream; raise OSError if it is too long."""
    content = bytearray()
    while part := stream.read(_PART_BYTES):  # read(most_bytes) would allocate that much memory even for a short file
        content += part
        if len(content) > most_bytes:
            raise OSError(errno.EFBIG, f"it is longer than {most_bytes >> 10} KiB")
    return bytes(content)


def read_text(path: Path, *, most_bytes: int = MOST_BYTES) -> str:
    """Return a text in UTF-8; raise OSError, whose strerror says why it cannot be read."""
    content = read(path, most_bytes=most_bytes)
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise OSError(errno.EILSEQ, f"it is not a UTF-8 text (byte {error.start})", path) from None


def json_object(text: Union[str, bytes]) -> Dict[str, Any]:
    """Return the object that a JSON text is; empty for any other text, such as a line that a full disk cut.

    >>> json_object('{"a": 1}'), json_object('{"a": ')
    ({'a': 1}, {})
    """
    import json  # a rank that finds its place needs none

    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def read_object(path: Path) -> Dict[str, Any]:
    """Return the object of a JSON file; empty if it is missing or broken, or cannot be read."""
    try:
        return json_object(read_text(path))
    except OSError:
        return {}


def read_objects(path: Path) -> List[Dict[str, Any]]:
    """Return the objects of the lines of a file; a broken line, such as the last one of a killed run, is left out."""
    try:
        lines = read(path, most_bytes=1 << 30).splitlines()
    except OSError:
        return []
    return [fields for line in lines if (fields := json_object(line))]
