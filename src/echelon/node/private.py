"""Files that belong to the user alone, never written through another's link; the lock of a run that is alive."""

import os
import stat

SECRET = "secret"


def is_own(folder: str) -> bool:
    """Say whether a folder belongs to the user, and nobody else may write into it."""
    status = os.stat(folder)
    return stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid() and not status.st_mode & 0o022


def write(path: str, content: bytes) -> None:
    """Write a file in place of an older one; the old file is replaced, not followed or overwritten."""
    remove(path)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)


def write_secret(folder: str, secret: bytes) -> None:
    """Write a run's secret into the user's own folder; raise PermissionError if others may write there."""
    if not is_own(folder):
        raise PermissionError(13, "others may write there, and the run's secret is to lie there")
    write(os.path.join(folder, SECRET), secret.hex().encode())


def read_secret(folder: str) -> bytes:
    descriptor = os.open(os.path.join(folder, SECRET), os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    with os.fdopen(descriptor, "rb") as file:
        return bytes.fromhex(file.read().decode())


def remove(path: str) -> None:
    try:
        os.unlink(path)
    except OSError:
        pass


def remove_folder(path: str) -> None:
    """Remove a folder with all that is in it, as far as it can be removed; a link is not followed."""
    if os.path.islink(path):
        return
    for folder, folders, files in os.walk(path, topdown=False):
        for name in files:
            remove(os.path.join(folder, name))
        for name in folders:
            _remove_empty(os.path.join(folder, name))
    _remove_empty(path)


def _remove_empty(path: str) -> None:
    try:
        os.unlink(path) if os.path.islink(path) else os.rmdir(path)
    except OSError:
        pass


def is_run_alive(run_directory: str) -> bool:
    """Say whether a living process holds the lock; a file system without locks never says so."""
    import fcntl  # which Windows lacks

    try:
        with open(os.path.join(run_directory, "events.jsonl"), "rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        pass
    return False
