"""Errors of checkpoints. A training goes on after each of them; a command stops."""

import errno
from collections.abc import Iterator
from contextlib import contextmanager

from ..errors import EchelonError

_CAUSES = {
    errno.ENOSPC: "the disk is full",
    errno.EDQUOT: "the disk quota is used up",
    errno.EROFS: "the file system is read-only",
    errno.EACCES: "permission denied",
    errno.EPERM: "the operation is not permitted",
    errno.EFBIG: "the file is larger than the limit for files",
    errno.EIO: "the disk or the network reports an error",
    errno.ESTALE: "the network file system has lost the folder",
}
_HINTS = {
    errno.ENOSPC: "remove files, or keep fewer checkpoints",
    errno.EDQUOT: "remove files, or keep fewer checkpoints",
    errno.EROFS: "choose another folder",
    errno.EACCES: "choose a folder of your own",
    errno.EPERM: "choose a folder of your own",
}


class CheckpointError(EchelonError):
    """A checkpoint cannot be written, read or used."""


class FormatError(CheckpointError):
    """A file is not what its name says, or is truncated."""


class WriteError(CheckpointError):
    """A checkpoint could not be written: a full disk, a quota, a read-only path, another user's folder.

    Earlier checkpoints are intact. `number` is the errno of the operating system, 0 if there is none.
    """

    def __init__(self, message: str, *, hint: str = "", number: int = 0) -> None:
        super().__init__(message, hint=hint)
        self.number = number


class MismatchError(CheckpointError):
    """The tensors of a checkpoint are not those of the training."""


def write_error(path: str, error: OSError) -> WriteError:
    """Return the error for a path that cannot be written.

    >>> print(write_error("checkpoints", OSError(errno.ENOSPC, "No space left on device")))
    cannot write checkpoints: the disk is full
    """
    number = error.errno or 0
    cause = _CAUSES.get(number, error.strerror or str(error))
    return WriteError(f"cannot write {path}: {cause}", hint=_HINTS.get(number, ""), number=number)


@contextmanager
def writing(path: str) -> Iterator[None]:
    """Raise WriteError for each OSError of a block that writes below `path`."""
    try:
        yield
    except OSError as error:
        raise write_error(path, error) from error
