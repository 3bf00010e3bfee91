"""A folder of checkpoints. A checkpoint is written beside, and published by one rename: no reader ever sees a part of
it. This module needs no torch.

    checkpoints/step-000000120/          rank-0.safetensors … tensors.json, journal.json, manifest.json
    checkpoints/.step-000000140.partial-<host>-<pid>-<random>/     being written
"""

import os
import re
import shutil
import socket
import time
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from . import manifest as manifests
from .errors import CheckpointError, writing
from .manifest import Damage, Manifest, WrittenFile
from .written import HashedFile, fsync_folder, write_file

SILENT_SECONDS = 3600.0  # a writer on another node that has changed no file for so long is dead
_PUBLISHED = re.compile(r"step-([0-9]{1,15})")
_REPLACED = re.compile(r"\.step-([0-9]{1,15})\.replaced-[0-9a-f]+")
_PARTIAL = re.compile(r"\.step-[0-9]+\.partial-(.*)-([0-9]{1,10})-[0-9a-f]+")
_REMOVED = re.compile(r"\.step-[0-9]+\.removed-[0-9a-f]+")


class Checkpoint(NamedTuple):
    """A whole checkpoint: its folder and its manifest."""

    path: str
    manifest: Manifest

    @property
    def step(self) -> int:
        return self.manifest.step


class CheckpointFolder(NamedTuple):
    """A folder that has the name of a checkpoint, and what is wrong with it."""

    path: str
    step: int
    manifest: Manifest | None
    """None if it cannot be read."""
    finding: str
    """A sentence; empty for a whole checkpoint."""


class Draft:
    """A checkpoint that is being written; nobody uses it before `publish`."""

    def __init__(self, folder: str, name: str, step: int, keep: int) -> None:
        self.path = os.path.join(folder, name)
        self.name = name
        """The name by which other ranks `join`."""
        self.step = step
        self._store = CheckpointStore(folder, keep)
        with writing(self.path):
            os.makedirs(self.path, mode=0o700, exist_ok=True)

    def file(self, name: str) -> HashedFile:
        """Open a new file of the checkpoint; its `written` gives size and checksum after the `with`.

        Raises WriteError if the file cannot be written.
        """
        return HashedFile(os.path.join(self.path, name))

    def write(self, name: str, content: bytes) -> WrittenFile:
        return write_file(os.path.join(self.path, name), content)

    def publish(
        self, files: Mapping[str, WrittenFile], *, num_ranks: int, about: Mapping[str, Any], versions: Mapping[str, str]
    ) -> Checkpoint:
        """Let the checkpoint appear under its name, and remove those that are not kept.

        `files` names all files, also those that other ranks wrote. Raises WriteError, after which the draft is gone
        and earlier checkpoints are intact; raises CheckpointError if a file lacks or has another size.
        """
        try:
            manifest = Manifest(self.step, self._store.next_serial(), time.time(), num_ranks, versions, files, about)
            manifests.check_sizes(self.path, manifest)
            self.write(manifests.NAME, manifests.encode(manifest))
            with writing(self._store.folder):
                fsync_folder(self.path)
                target = self._store.path(self.step)
                self._store.replace(target, self.step)
                os.rename(self.path, target)
                fsync_folder(self._store.folder)
        except CheckpointError:
            self.discard()
            raise
        self._store.prune()
        return Checkpoint(target, manifest)

    def discard(self) -> None:
        shutil.rmtree(self.path, ignore_errors=True)


class CheckpointStore:
    """A folder of checkpoints, of which the newest `keep` are kept.

    >>> import tempfile
    >>> store = CheckpointStore(tempfile.mkdtemp(), keep=2)
    >>> draft = store.begin(120)
    >>> files = {"journal.json": draft.write("journal.json", b"{}")}
    >>> checkpoint = draft.publish(files, num_ranks=1, about={}, versions={})
    >>> found, findings = store.latest()
    >>> found.step, os.path.basename(found.path), findings
    (120, 'step-000000120', [])
    """

    def __init__(self, folder: str, keep: int = 3) -> None:
        if keep < 1:
            raise CheckpointError(f"{keep} checkpoints are to be kept; at least 1 must be", hint="keep=3")
        self.folder = os.path.abspath(folder)
        self.keep = keep

    def path(self, step: int) -> str:
        return os.path.join(self.folder, f"step-{step:09d}")

    def begin(self, step: int) -> Draft:
        """Begin a checkpoint, and remove what dead writers have left; raise WriteError if the folder refuses."""
        with writing(self.folder):
            os.makedirs(self.folder, mode=0o700, exist_ok=True)
            self._tidy()
        owner = f"{socket.gethostname()}-{os.getpid()}-{os.urandom(4).hex()}"
        return self.join(f".step-{step:09d}.partial-{owner}")

    def join(self, name: str) -> Draft:
        matched = re.match(r"\.step-([0-9]{1,15})\.partial-", name)
        if matched is None or os.path.basename(name) != name:
            raise CheckpointError(f"{name!r} is not the name of a draft")
        return Draft(self.folder, name, int(matched.group(1)), self.keep)

    def latest(self, *, deep: bool = False) -> tuple[Checkpoint | None, list[str]]:
        """Return the newest whole checkpoint, None if there is none, and a sentence for each newer one that is not.

        The quick check compares sizes; `deep` reads all files and compares their checksums.
        """
        skipped: list[CheckpointFolder] = []
        for entry in self._entries(deep):
            if entry.manifest is not None and not entry.finding:
                findings = [one.finding for one in skipped if one.manifest is not None or one.step > entry.step]
                return Checkpoint(entry.path, entry.manifest), findings
            skipped.append(entry)
        return None, [one.finding for one in skipped]

    def newest_first(self) -> list[CheckpointFolder]:
        """Return all folders that have the name of a checkpoint; files are compared by their sizes alone.

        Folders without a manifest come first, for nobody knows how new they are; then the newest.
        """
        return list(self._entries(deep=False))

    def entries(self, *, deep: bool = False) -> list[CheckpointFolder]:
        """Return all folders that have the name of a checkpoint, by their steps."""
        return sorted(self._entries(deep), key=lambda entry: entry.step)

    def next_serial(self) -> int:
        manifests_here = [_readable(path) for _, path in self._candidates()]
        return 1 + max((one.serial for one in manifests_here if one is not None), default=0)

    def replace(self, target: str, step: int) -> None:
        """Move a folder away that has the name of a new checkpoint; it counts until the new one is there."""
        if os.path.lexists(target):
            os.rename(target, os.path.join(self.folder, f".step-{step:09d}.replaced-{os.urandom(4).hex()}"))

    def prune(self) -> None:
        """Remove the checkpoints that are not kept; a failure removes them the next time."""
        kept = 0
        try:
            for entry in self._entries(deep=False):
                if kept >= self.keep and entry.manifest is not None:
                    self._remove(entry.path)
                kept += not entry.finding
            self._tidy()
        except OSError:
            pass  # the new checkpoint is published; a folder that cannot be removed only takes space

    def _entries(self, deep: bool) -> Iterator[CheckpointFolder]:
        """Yield folders without a manifest, then the others, newest first; each is checked when it is asked for."""
        folders = [(path, step, _readable_of(path, step)) for step, path in self._candidates()]
        folders.sort(key=lambda one: (one[2] is None, one[2].serial if one[2] else 0, one[1]), reverse=True)
        for path, step, manifest in folders:
            try:
                yield CheckpointFolder(path, step, manifests.whole(path, step=step, deep=deep), "")
            except Damage as damage:
                yield CheckpointFolder(path, step, manifest, f"{os.path.basename(path)} is not used: {damage.message}")

    def _candidates(self) -> list[tuple[int, str]]:
        """Return steps and folders; one that was being replaced counts where the new one is missing."""
        names = self._names()
        path_of: dict[int, str] = {}
        for pattern in (_REPLACED, _PUBLISHED):
            for name in names:
                matched = pattern.fullmatch(name)
                if matched is not None:
                    path_of[int(matched.group(1))] = os.path.join(self.folder, name)
        return sorted(path_of.items())

    def _names(self) -> list[str]:
        try:
            return sorted(os.listdir(self.folder))
        except FileNotFoundError:
            return []
        except OSError as error:
            raise CheckpointError(f"cannot read {self.folder}: {error.strerror}") from None

    def _tidy(self) -> None:
        """Remove what dead writers left, and finish what they began."""
        for name in self._names():
            path = os.path.join(self.folder, name)
            replaced, partial = _REPLACED.fullmatch(name), _PARTIAL.fullmatch(name)
            if replaced is not None:
                target = self.path(int(replaced.group(1)))
                if os.path.lexists(target):
                    self._remove(path)
                else:
                    os.rename(path, target)
            elif _REMOVED.fullmatch(name) or (partial and _is_dead(path, partial.group(1), int(partial.group(2)))):
                shutil.rmtree(path, ignore_errors=True)

    def _remove(self, path: str) -> None:
        """Remove a checkpoint: first its name, so that no part of it is ever taken for a whole one."""
        step = os.path.basename(path).lstrip(".").partition(".")[0]
        away = os.path.join(self.folder, f".{step}.removed-{os.urandom(4).hex()}")
        os.rename(path, away)
        shutil.rmtree(away, ignore_errors=True)


def has_checkpoint(folder: str) -> bool:
    return os.path.isdir(folder) and any(_PUBLISHED.fullmatch(name) for name in os.listdir(folder))


def _readable(path: str) -> Manifest | None:
    try:
        return manifests.read(path)
    except Damage:
        return None


def _readable_of(path: str, step: int) -> Manifest | None:
    """Return the manifest of a folder; that of another step does not say how new the folder is."""
    manifest = _readable(path)
    return manifest if manifest is not None and manifest.step == step else None


def _is_dead(path: str, host: str, pid: int) -> bool:
    if host == socket.gethostname():
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return True
        except OSError:
            pass  # the process of another user
    try:
        paths = [path, *(entry.path for entry in os.scandir(path))]
        return time.time() - max(os.stat(one).st_mtime for one in paths) > SILENT_SECONDS
    except OSError:
        return False
