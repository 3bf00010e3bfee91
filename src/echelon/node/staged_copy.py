"""The copy of a source on this node's own disk: its manifest, its lock, its links and mounts, and its removal."""

import fcntl
import os
import shutil
import subprocess
import time
from contextlib import suppress
from hashlib import blake2b
from typing import Container, Iterable, List, Optional, Tuple

from . import private
from .secret import PROOF_BYTES
from .survey import folders

PATIENCE_SECONDS = 10.0  # with another run that has this copy
MANIFEST, _LOCK, _LINKS, _FILES, _MOUNT = "manifest", "lock", "links", "files", "mount-"
PREFIX = "echelon-stage-%d-"  # of the folder of all that a user's job has staged on a node
KEEPER = "keeper"  # beside the copies


class StagedCopy:
    """The copy of one source on this node, and the lock of those that use or change it.

    A run that uses the copy holds the lock with others. Whoever changes or removes it holds the lock alone.
    """

    def __init__(self, folder: str, word: str) -> None:
        self.path = folder
        self.files = os.path.join(folder, _FILES)
        self._word = word
        self._lock = -1
        self._mount: Optional["subprocess.Popen[bytes]"] = None
        self._mount_point = ""
        self._open()

    def _open(self) -> None:
        """Open the lock; the run before may have removed the folder."""
        if self._lock >= 0:
            os.close(self._lock)
        os.makedirs(self.path, mode=0o700, exist_ok=True)
        if not private.is_own(self.path):
            raise PermissionError(13, "it belongs to another user, or others may write there")
        self._lock = os.open(os.path.join(self.path, _LOCK), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)

    def _is_there(self) -> bool:
        with suppress(OSError):
            return os.stat(os.path.join(self.path, _LOCK)).st_ino == os.fstat(self._lock).st_ino
        return False

    def use(self) -> None:
        """Keep others from changing and removing it, as soon as nobody changes it."""
        fcntl.flock(self._lock, fcntl.LOCK_SH)
        while not self._is_there():
            self._open()
            fcntl.flock(self._lock, fcntl.LOCK_SH)

    def take(self, *, keeps: bool) -> str:
        """Take it to change it; return "own", or "shared" if another process of this run on this machine does.

        What it has goes, unless `keeps`. Raise BlockingIOError if another run uses it.
        """
        fcntl.flock(self._lock, fcntl.LOCK_UN)
        deadline = time.monotonic() + PATIENCE_SECONDS
        while True:
            try:
                fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if self._is_there():
                    break
                self._open()
            except BlockingIOError:
                if os.pread(self._lock, 64, 0).decode() == self._word:
                    return "shared"
                if time.monotonic() > deadline:
                    raise BlockingIOError(11, "another run uses an older copy of it") from None
                time.sleep(0.05)
        if keeps and not self.manifest:
            raise FileNotFoundError(2, "another run has removed it meanwhile")
        os.ftruncate(self._lock, 0)
        os.pwrite(self._lock, self._word.encode(), 0)
        private.remove(os.path.join(self.path, MANIFEST))
        make_writable(self.files)
        if not keeps:
            private.remove_folder(self.files)
        os.makedirs(self.files, mode=0o700, exist_ok=True)
        return "own"

    @property
    def manifest(self) -> str:
        """The list of what is here, as text; empty before all has come."""
        try:
            with open(
                os.path.join(self.path, MANIFEST), encoding="utf-8", errors="surrogateescape", newline=""
            ) as file:
                return file.read()
        except OSError:
            return ""

    @property
    def free_bytes(self) -> int:
        disk = os.statvfs(self.path)
        return disk.f_bavail * disk.f_frsize

    def finish(self, manifest: str) -> None:
        """Note that all has come."""
        private.write(os.path.join(self.path, MANIFEST), manifest.encode("utf-8", "surrogateescape"))

    def why_not_here(self) -> str:
        """Return why no copy can lie here; empty if one can."""
        place, _mount, filesystem = folders.where(self.path, folders.mounts("/"))
        return "%s lies on %s, which nodes share" % (place, filesystem) if filesystem in folders.SHARED else ""

    def why_not_at(self, link: str) -> str:
        """Return why the copy cannot be seen at a path; empty if it can, or if nothing is asked."""
        path = link.rstrip(os.sep)
        if link.endswith(os.sep) and shutil.which("squashfuse") is None:
            return "squashfuse, which mounts the image, is not installed there"
        if not link or (os.path.islink(path) and os.readlink(path).startswith(self.path + os.sep)):
            return ""
        if not os.path.isdir(os.path.dirname(path)) and not path.startswith(self.path):
            return "%s: there is no folder %s" % (path, os.path.dirname(path))
        return "%s is there already" % path if os.path.lexists(path) else ""

    def show(self, name: str, link: str) -> None:
        """Lay a link to the copy where the user wants it, or mount an image of a file system there."""
        path = os.path.join(self.files, name)
        if link.endswith(os.sep):  # the image is to be seen as a folder
            if os.path.ismount(link):
                return  # by another process of this run on this machine
            self._mount_point = link.rstrip(os.sep)
            self._mount = _mounted(path, self._mount_point)
        elif link and not os.path.islink(link):
            os.symlink(path, link)
            with open(os.path.join(self.path, _LINKS), "a", encoding="utf-8", errors="surrogateescape") as file:
                file.write(link + "\n")

    def release(self) -> None:
        """Let others change it."""
        if self._mount is not None:
            self._mount.terminate()
            self._mount.wait()
            with suppress(OSError):
                os.rmdir(self._mount_point)
        fcntl.flock(self._lock, fcntl.LOCK_UN)

    def remove(self) -> None:
        """Remove the copy with the links to it, unless another run uses it."""
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self._remove()
        except BlockingIOError:
            pass
        finally:
            os.close(self._lock)

    def _remove(self) -> None:
        with (
            suppress(OSError),
            open(os.path.join(self.path, _LINKS), encoding="utf-8", errors="surrogateescape") as file,
        ):
            for link in file.read().splitlines():
                if os.path.islink(link) and os.readlink(link).startswith(self.path + os.sep):
                    private.remove(link)
        for name in os.listdir(self.path):
            if name.startswith(_MOUNT) and os.path.ismount(
                os.path.join(self.path, name)
            ):  # of a stager that was killed
                subprocess.run(["fusermount", "-u", "-z", os.path.join(self.path, name)], check=False)
        make_writable(self.files)
        private.remove_folder(self.path)


def hold(places: Iterable[str]) -> List[StagedCopy]:
    """Keep copies from being removed, also if the process that brought them here is killed."""
    copies = [StagedCopy(place, "") for place in places if os.path.isdir(place)]
    for copy in copies:
        copy.use()
    return copies


def clear(folder: str, spared: Container[str] = ()) -> None:
    """Remove the copies that nobody uses, and the folder if it is empty then."""
    with suppress(OSError):  # another run that ends now removes the same
        for key in os.listdir(folder):
            if os.path.isdir(os.path.join(folder, key)) and key not in spared:
                StagedCopy(os.path.join(folder, key), "").remove()
        private.remove(os.path.join(folder, KEEPER))
        os.rmdir(folder)


def clear_dead(folder: str, spared: Container[str] = ()) -> None:
    """Remove what killed runs and jobs of this user have left beside a folder and in it; `spared` are names in it."""
    base, own = os.path.split(folder)
    of_user = PREFIX % os.geteuid()
    for name in os.listdir(base) if os.path.isdir(base) else ():
        path = os.path.join(base, name)
        if (name == own or name.startswith(of_user)) and not os.path.islink(path):
            with suppress(OSError):  # another run has just removed it
                if private.is_own(path) and not _is_kept(path):
                    clear(path, spared if name == own else ())


def _is_kept(folder: str) -> bool:
    """Say whether a process keeps the copies in a folder as long as its pool lives."""
    try:
        with open(os.path.join(folder, KEEPER), "rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        pass
    return False


def _mounted(image: str, folder: str) -> "subprocess.Popen[bytes]":
    """Mount a SquashFS image without rights of an administrator; the process ends with the mount."""
    os.makedirs(folder, mode=0o700)
    before = os.stat(folder).st_dev
    process = subprocess.Popen(
        ["squashfuse", "-f", image, folder], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
    )
    while os.stat(folder).st_dev == before:
        if process.poll() is not None:
            said = process.stderr.read().decode("utf-8", "replace").strip() if process.stderr else ""
            raise OSError(5, "squashfuse ended: %s" % said)
        time.sleep(0.01)
    return process


def make_writable(folder: str) -> None:
    """Let the user change the folders of a copy; they are read-only, so that no script writes what would be lost."""
    for path, _folders, _files in os.walk(folder):
        os.chmod(path, 0o700)


def copy_shards(source: str, target: str, entries: List[Tuple[str, str, bool]]) -> None:
    """Copy the own files of a node; the other entries, by path, kind and whether they are own, are links to them."""
    folders = [target]
    os.makedirs(target, mode=0o700, exist_ok=True)
    for name, kind, is_own in entries:
        path = os.path.join(target, name)
        if kind == "d":
            os.makedirs(path, mode=0o700, exist_ok=True)
            folders.append(path)
        elif is_own:
            shutil.copyfile(os.path.join(source, name), path)
            shutil.copystat(os.path.join(source, name), path)
        else:
            os.symlink(os.path.join(source, name), path)
    for path in reversed(folders):
        os.chmod(path, 0o500)


def remove_path(path: str) -> None:
    if os.path.isdir(path) and not os.path.islink(path):
        private.remove_folder(path)
    else:
        private.remove(path)


def new_digest(content: bytes = b"") -> "blake2b":
    return blake2b(content, digest_size=PROOF_BYTES)


def digest_of(manifest: str) -> str:
    return new_digest(manifest.encode("utf-8", "surrogateescape")).hexdigest() if manifest else ""
