"""Translate errors of Python and the system for a person: what failed, why, and a repair."""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING

from echelon.cli.streams import OutputLost
from echelon.environment.errors import WrongEnvironmentError
from echelon.errors import EchelonError, UsageError

if TYPE_CHECKING:
    from types import TracebackType

FOREIGN = (WrongEnvironmentError, OSError, UnicodeError, RecursionError, MemoryError)
"""Errors that an input or a machine can cause anywhere; any other exception is a mistake of echelon."""
TRACEBACK = "ECHELON_TRACEBACK"

_OF_A_PATH = {
    errno.ENOENT, errno.EACCES, errno.EPERM, errno.ENOTDIR, errno.EISDIR, errno.ELOOP, errno.ENAMETOOLONG, errno.EROFS,
    errno.EEXIST, errno.ENXIO, errno.EINVAL,
}  # fmt: skip
"""These errors mean that a given path is wrong; other numbers concern the machine."""
_REPAIRS = {
    errno.ENOSPC: "df -h . ; df -i .   show which disk or which count of files is full",
    errno.EDQUOT: "quota -s   or your site's command for quotas",
    errno.EMFILE: "ulimit -n 4096",
    errno.ENFILE: "another node: this one has too many open files",
    errno.ENOMEM: "ulimit -v unlimited",
    errno.EAGAIN: "ulimit -u   shows how many processes you may have",
    errno.ESTALE: "cd .   or another node: the file server has forgotten this folder",
}


def translated(error: BaseException) -> EchelonError:
    """Return an error of FOREIGN as an EchelonError."""
    if isinstance(error, WrongEnvironmentError):
        return UsageError(error.message, hint=error.hint)
    if isinstance(error, OutputLost):
        return EchelonError(
            f"standard output cannot be written: {error.strerror}", hint=_REPAIRS.get(error.errno or 0, "")
        )
    if isinstance(error, MemoryError):
        return EchelonError("there is not enough memory for echelon itself", hint=_REPAIRS[errno.ENOMEM])
    if isinstance(error, RecursionError):
        return UsageError("the input is nested too deeply to be read", hint="use fewer nested brackets")
    if isinstance(error, UnicodeError):
        return UsageError(f"a text is not UTF-8: {error}", hint="iconv -t UTF-8 FILE   writes it anew")
    return _of_system(error) if isinstance(error, OSError) else EchelonError(str(error))


def is_unread(error: BaseException) -> bool:
    """Say whether the reader of a pipe has ended, as after `… | head`."""
    return isinstance(error, OutputLost) and error.errno == errno.EPIPE


def _of_system(error: OSError) -> EchelonError:
    try:
        os.getcwd()
    except OSError as lost:
        return UsageError(
            f"the working directory cannot be used: {lost.strerror}", hint="cd ~   or another directory that exists"
        )
    name = f"{os.fsdecode(error.filename)}: " if isinstance(error.filename, (str, bytes)) else ""  # or a descriptor
    kind = UsageError if name and error.errno in _OF_A_PATH else EchelonError
    return kind(f"{name}{error.strerror or error}", hint=_REPAIRS.get(error.errno or 0, ""))


def tell_mistake(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """Say in two lines that echelon itself has a mistake; this is the sys.excepthook."""
    import traceback

    if os.environ.get(TRACEBACK):
        traceback.print_exception(kind, error, trace)
        return
    from echelon.cli.talk import say_error

    rows = traceback.extract_tb(trace)
    where = f" in {os.path.basename(rows[-1].filename)}, line {rows[-1].lineno}" if rows else ""
    say_error(
        EchelonError(
            f"a mistake in echelon{where}: {kind.__name__}: {error}",
            hint=f"{TRACEBACK}=1 before the same command shows more; please report it",
        )
    )
