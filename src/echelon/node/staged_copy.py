"""The copy of a source on this node's own disk: its manifest, its lock, its link or mount, and its removal."""

import fcntl
import os
import shutil
import stat
import subprocess
import time
from contextlib import suppress
from hashlib import blake2b
from typing import List, Optional

from . import private
from .secret import PROOF_BYTES

PATIENCE_SECONDS = 2.0  # with another run that has this copy
MANIFEST, _LOCK = "manifest", "lock"


class Area:
    """The copy of one source on this node: its folder, its manifest, and the lock of those that use or change it."""

    def __init__(self, folder: str, word: str) -> None:
        self.path = folder
        self._word = word
        self.link = ""
        self.mount: Optional["subprocess.Popen[bytes]"] = None
        self.mount_point = ""
        os.makedirs(folder, mode=0o700, exist_ok=True)
        if not private.is_own(folder):
            raise PermissionError(13, "it belongs to another user, or others may write there")
        self._lock = os.open(os.path.join(folder, _LOCK), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)

    @property
    def manifest(self) -> str:
        """The list of what is here, as text; empty before all has come."""
        try:
            with open(os.path.join(self.path, MANIFEST), encoding="utf-8") as file:
                return file.read()
        except OSError:
            return ""

    @property
    def free_bytes(self) -> int:
        disk = os.statvfs(self.path)
        return disk.f_bavail * disk.f_frsize

    def take(self) -> str:
        """Take the area to change it; return "own", or "shared" if another process of this run on this machine does.

        Raise BlockingIOError if another run uses it.
        """
        deadline = time.monotonic() + PATIENCE_SECONDS
        while True:
            try:
                fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if os.pread(self._lock, 64, 0).decode() == self._word:
                    return "shared"
                if time.monotonic() > deadline:
                    raise BlockingIOError(11, "another run uses an older copy of it") from None
                time.sleep(0.05)
        os.ftruncate(self._lock, 0)
        os.pwrite(self._lock, self._word.encode(), 0)
        with suppress(FileNotFoundError):
            os.unlink(os.path.join(self.path, MANIFEST))
        return "own"

    def finish(self, manifest: str) -> None:
        """Note that all has come."""
        private.write(os.path.join(self.path, MANIFEST), manifest.encode("utf-8", "surrogateescape"))

    def use(self) -> None:
        """Keep others from changing it, as soon as nobody changes it."""
        fcntl.flock(self._lock, fcntl.LOCK_SH)

    def show(self, name: str, link: str) -> None:
        """Lay a link to the copy where the user wants it; mount an image of a file system."""
        path = os.path.join(self.path, name)
        if link.endswith(os.sep):  # the image is to be seen as a folder
            self.mount_point = link.rstrip(os.sep)
            self.mount = _mounted(path, self.mount_point)
        elif link:
            if os.path.islink(link) and os.readlink(link) == path:
                return
            os.symlink(path, link)
            self.link = link

    def release(self) -> None:
        """Let others change it."""
        if self.mount is not None:
            self.mount.terminate()
            self.mount.wait()
        if self.link:
            private.remove(self.link)
        fcntl.flock(self._lock, fcntl.LOCK_UN)

    def remove(self) -> None:
        """Remove the copy, unless another run uses it."""
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return
        make_writable(self.path)
        private.remove_folder(self.path)


def _mounted(image: str, folder: str) -> "subprocess.Popen[bytes]":
    """Mount a SquashFS image without rights of an administrator; the process ends with the mount."""
    os.makedirs(folder, mode=0o700, exist_ok=True)
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


def copy_shards(source: str, target: str, names: List[str], own: List[str]) -> None:
    copied = set(own)
    for name in names:
        path = os.path.join(target, name)
        os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
        private.remove(path)
        if name in copied:
            shutil.copyfile(os.path.join(source, name), path)
            os.chmod(path, stat.S_IRUSR)
        else:
            os.symlink(os.path.join(source, name), path)


def remove_path(path: str) -> None:
    if os.path.isdir(path) and not os.path.islink(path):
        private.remove_folder(path)
    else:
        private.remove(path)


def new_digest(content: bytes = b"") -> "blake2b":
    return blake2b(content, digest_size=PROOF_BYTES)


def digest_of(manifest: str) -> str:
    return new_digest(manifest.encode("utf-8", "surrogateescape")).hexdigest() if manifest else ""
