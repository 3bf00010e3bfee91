"""Let files appear when they are whole: a file is written beside its place, and then renamed.

A process may be killed at any moment. Then the last whole file is still there, also if the new file has a new name.
"""

import atexit
import functools
import hashlib
import io
import os
import re
import stat
import time
import weakref
from collections.abc import Callable
from os import chmod, listdir, mkdir, replace, rmdir, scandir, unlink
from os import stat as look  # these names stay Python's own functions, also when scripts get ours
from typing import Any

from ..function_types import Function

TEXT_PAUSE_SECONDS = 1.0  # text that is written with such pauses is a log, which people read while it grows
BYTES_PAUSE_SECONDS = 10.0  # between two parts of a snapshot, a device may compute
MOST_SEEN_NAMES = 10000  # in one folder, in search of what killed processes have left there

_MODES = ("w", "wt", "tw", "wb", "bw")
_hidden: "weakref.WeakValueDictionary[str, Whole]" = weakref.WeakValueDictionary()
_holding = [0]
_is_watched: list[Any] = []
_cleared: set[str] = set()
_BESIDE = re.compile(r"/\.[^/]+\.\w+-\d+-[0-9a-f]{6}\.partial(/|$)")


class Whole(io.FileIO):
    """A file under a temporary name, which takes its own name when it is whole, or when somebody looks."""

    def __init__(self, file: Any, place: str, *, is_text: bool) -> None:
        self._place = place
        self._key = os.path.abspath(os.fsdecode(file))
        self._is_shown = self._has_content = self._has_failed = False
        self._pid = os.getpid()
        self._pause = TEXT_PAUSE_SECONDS if is_text else BYTES_PAUSE_SECONDS
        self._last = time.monotonic()
        self._temporary = name_beside(self._place)
        super().__init__(self._temporary, "w")
        self.name = file
        if not _is_watched:
            _is_watched.append(atexit.register(_show_all))
        _hidden[self._key] = self

    def write(self, data: Any) -> Any:
        """Write, as a file does; show a file that is written with pauses, and so is no snapshot."""
        if time.monotonic() - self._last > self._pause:
            self.show()
        try:
            size = super().write(data)
        except OSError:
            self._has_failed = True
            raise
        self._has_content = True
        self._last = time.monotonic()
        return size

    def fileno(self) -> int:
        """Return the descriptor, to which others may write; so the file is shown."""
        if not _holding[0] and not self.closed:
            self.show()
        return super().fileno()

    def flushed(self) -> None:
        """Show a file whose writer wants it to be on the disk."""
        if self._has_content and not _holding[0]:
            self.show()

    def abandon(self) -> None:
        """Forget what was written: an error came before the file was whole."""
        self._has_failed = True

    def show(self) -> None:
        """Give the file its own name; other processes that inherited the file do not."""
        if self._is_shown or self._has_failed or os.getpid() != self._pid:
            return
        self._is_shown = True
        _hidden.pop(self._key, None)
        try:
            put(self._temporary, self._place)
        except FileNotFoundError:
            pass  # somebody removed the folder

    def close(self) -> None:
        if self.closed:
            return
        super().close()
        self.show()
        if not self._is_shown and os.getpid() == self._pid:
            _hidden.pop(self._key, None)
            _remove(self._temporary)


class Buffer(io.BufferedWriter):
    """The buffer in front of a file that appears when it is whole."""

    def flush(self) -> None:
        super().flush()
        self.raw.flushed()  # type: ignore[attr-defined]

    def __exit__(self, kind: Any, *more: Any) -> None:
        """Close the file; keep the old file if an error came before the new one was whole."""
        if kind is not None:
            self.raw.abandon()  # type: ignore[attr-defined]
        super().__exit__(kind, *more)


def opened(
    original: Function, file: object, mode: str, buffering: int, encoding: Any, errors: Any, newline: Any, *more: Any
) -> Any:
    """Open a file, as open() does, that appears when it is whole, if that is possible."""
    if len(mode) > 2 or (encoding or errors or newline) is not None:
        original(os.devnull, mode, buffering, encoding, errors, newline).close()  # are they valid?
    raw = open_raw(file, mode, buffering, *more)
    if raw is None:
        return original(file, mode, buffering, encoding, errors, newline, *more)
    buffer = Buffer(raw, buffering if buffering > 1 else raw._blksize)
    if "b" in mode:
        return buffer
    text: Any = io.TextIOWrapper(buffer, encoding, errors, newline)
    text.mode = mode
    return text


def open_raw(file: object, mode: str, buffering: int, closefd: bool, opener: object) -> Any:
    """Open a file that appears when it is whole; return None if it must be written in its place."""
    is_line_buffered = buffering == 1 and "b" not in mode
    if mode not in _MODES or buffering == 0 or is_line_buffered:
        return None
    if opener is not None or not closefd or not isinstance(file, (str, bytes, os.PathLike)):
        return None
    place = os.path.realpath(os.fsdecode(file))
    if not _may_be_replaced(place, breaks_links=False):
        return None
    try:
        return Whole(file, place, is_text="b" not in mode)
    except OSError:
        return None  # open() says what is wrong; or a read-only folder has a file that can be written


def _may_be_replaced(place: str, *, breaks_links: bool) -> bool:
    """Say whether a file may be replaced by another: it belongs to this user, and hard links are not broken."""
    try:
        status = look(place)
    except FileNotFoundError:
        return True
    except (OSError, ValueError):
        return False
    is_free = stat.S_ISREG(status.st_mode) and (breaks_links or status.st_nlink == 1)
    return is_free and status.st_uid == os.geteuid() and os.access(place, os.W_OK)


def show(path: str | None) -> None:
    """Show the file at this path, and the files in this folder, before somebody looks."""
    for place, file in list(_hidden.items()) if _hidden else ():
        if path in (place, os.path.dirname(place)):
            file.show()


def _show_all() -> None:
    for file in list(_hidden.values()):
        file.show()


def are_hidden() -> bool:
    """Say whether a file of this process has not appeared yet."""
    return bool(_hidden)


def writing(
    place: int, key: str, on_error: Callable[[str, RuntimeError], None], original: Callable[..., object]
) -> Function:
    """Return a function in place of one of a library that writes a file, by its path or into an open file."""

    @functools.wraps(original)
    def write(*args: object, **kwargs: object) -> Any:
        file: Any = args[place] if len(args) > place else kwargs.get(key)
        folder = _folder_beside(file) if isinstance(file, (str, bytes, os.PathLike)) else ""
        if not folder:
            return _holding_back(original, *args, **kwargs)
        path = os.path.realpath(os.fsdecode(file))
        temporary = os.path.join(folder, os.path.basename(path))  # the same name: torch.save stores it too
        try:
            keywords = {key: temporary} if key in kwargs else {}
            arguments = args if keywords else (*args[:place], temporary, *args[place + 1 :])
            result = original(*arguments, **{**kwargs, **keywords})
            _put_all(temporary, path)
        except RuntimeError as error:
            on_error(path, error)
            raise
        finally:
            _remove(folder)
        return result

    return write


def _holding_back(original: Callable[..., object], *args: object, **kwargs: object) -> Any:
    """Call a function that may flush an open file before the file is whole."""
    _holding[0] += 1
    try:
        return original(*args, **kwargs)
    finally:
        _holding[0] -= 1


def _folder_beside(file: Any) -> str:
    """Make a folder for a file until it is whole; return an empty text if the file is written in place."""
    path = os.path.realpath(os.fsdecode(file))
    if not _may_be_replaced(path, breaks_links=True):
        return ""
    try:
        folder = name_beside(path)
        mkdir(folder)
    except OSError:
        return ""  # a read-only folder may contain writable files; else the library says what is wrong
    return folder


def _put_all(temporary: str, path: str) -> None:
    """Move a whole file to its place, after the files that onnx.save(), for one, has put beside it."""
    folder, main = os.path.split(temporary)
    names = listdir(folder)
    for name in sorted(names, key=lambda name: name == main):
        put(os.path.join(folder, name), os.path.join(os.path.dirname(path), name))


def put(temporary: str, path: str) -> None:
    try:
        chmod(temporary, stat.S_IMODE(look(path).st_mode))
    except OSError:
        pass  # there is no old file
    replace(temporary, path)


@functools.cache
def _here() -> str:
    """Return a word for this boot of this machine and its process ids: a container may have its own."""
    try:
        with open("/proc/sys/kernel/random/boot_id", "rb") as file:
            boot = file.read()
        return hashlib.sha256(boot + os.fsencode(os.readlink("/proc/self/ns/pid"))).hexdigest()[:8]
    except OSError:
        return ""


def is_there(path: str) -> bool:
    try:
        look(path, follow_symlinks=False)
    except OSError:
        return False
    return True


def name_beside(path: str) -> str:
    """Return a new name beside a path, which `glob("*")` does not find; remove what killed processes left there."""
    folder, name = os.path.split(path)
    if folder not in _cleared:
        _cleared.add(folder)
        _clear(folder)
    mark = f"{_here() or 'unknown'}-{os.getpid()}-{os.urandom(3).hex()}"
    return os.path.join(folder, f".{name}.{mark}.partial")


def _clear(folder: str) -> None:
    """Remove unfinished files of processes that are gone from this machine."""
    pattern = re.compile(r"\..+\.%s-(\d+)-[0-9a-f]{6}\.partial" % (_here() or "no machine"))
    try:
        with scandir(folder) as entries:
            matches = [pattern.fullmatch(entry.name) for entry, _ in zip(entries, range(MOST_SEEN_NAMES), strict=False)]
    except OSError:
        return
    for match in matches:
        if match and not _lives(match.group(1)):
            _remove(os.path.join(folder, match.group()))


def _lives(pid: str) -> bool:
    try:
        look("/proc/" + pid)
    except FileNotFoundError:
        return False
    return True


def is_beside(path: str) -> bool:
    """Say whether a path is a file that is not whole yet, or in a folder of such files."""
    return ".partial" in path and _BESIDE.search(path) is not None


def _remove(path: str) -> None:
    """Remove what name_beside() named: a file, or a folder of files."""
    try:
        unlink(path)
    except (IsADirectoryError, PermissionError):
        for name in listdir(path):
            _remove(os.path.join(path, name))
        rmdir(path)
    except OSError:
        pass  # another rank has removed it
