"""A scratch copy of the user's folder: small files are copied, large ones are linked, and none of them is changed."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from echelon.errors import UsageError
from echelon.trials.own_runs import TriedScript

LEFT_OUT = frozenset({".git", ".hg", ".svn", "__pycache__", "node_modules", "echelon-runs", "wandb", "mlruns"})
OURS = ".echelon-"  # how the names of our own hidden folders begin
LARGE_BYTES = 16 << 20  # a larger file is linked
MANY_FILES = 20_000  # a folder with more files is linked as a whole, as a data set of small files is
MOST_BYTES = 1 << 30  # when so much is to be copied, all further files are linked


@dataclass(slots=True)
class Contents:
    """What a copy will have; all paths are relative to the folder."""

    folder: str
    folders: list[str] = field(default_factory=list)
    copied: list[str] = field(default_factory=list)
    linked: list[str] = field(default_factory=list)
    num_bytes: int = 0
    """Of the copied files."""

    def kept_in(self, target: str) -> Contents:
        """Copy the files once, and return contents that are copied from there: the user may edit the folder."""
        self.copy_to(target)
        return replace(self, folder=target)

    def state_of_linked(self) -> dict[str, tuple[int, int]]:
        """Return the time and the size of each linked file, by its path."""
        states = {}
        for path in self.linked:
            real = os.path.realpath(os.path.join(self.folder, path))
            if os.path.isfile(real):
                status = os.stat(real)
                states[path] = (status.st_mtime_ns, status.st_size)
        return states

    def copy_to(self, target: str) -> None:
        """Make the copy in a new folder; raise UsageError for a file that cannot be read."""
        try:
            os.mkdir(target)
            for path in self.folders:
                os.mkdir(os.path.join(target, path))
            for path in self.copied:
                shutil.copy2(os.path.join(self.folder, path), os.path.join(target, path), follow_symlinks=True)
            for path in self.linked:
                os.symlink(os.path.realpath(os.path.join(self.folder, path)), os.path.join(target, path))
        except OSError as error:
            raise _unreadable(error) from None


def look(folder: str) -> Contents:
    """Return what a copy of a folder will have; raise UsageError for a folder that cannot be read."""
    contents = Contents(os.path.abspath(folder))
    try:
        _look_into("", contents)
    except OSError as error:
        raise _unreadable(error) from None
    return contents


def command_in(asked: TriedScript, original: str, copy: str) -> tuple[str, ...]:
    """Return the words of a script in a copy of the folder `original`; a module is looked for where it runs."""
    return asked.command if asked.is_module else asked.command_of(in_copy(asked.script, original, copy))


def in_copy(script: str, original: str, copy: str) -> str:
    """Return the path of a script in a copy of the folder `original`; one from elsewhere stays where it is."""
    target = os.path.realpath(os.path.join(original, script))
    inside = os.path.relpath(target, os.path.realpath(original))
    return target if inside.startswith("..") else os.path.join(copy, inside)


def _unreadable(error: OSError) -> UsageError:
    return UsageError(
        f"{error.filename} cannot be copied: {error.strerror}",
        hint="use a folder whose files you can read, and in which no other training writes",
    )


def _look_into(path: str, contents: Contents) -> None:
    with os.scandir(os.path.join(contents.folder, path)) as entries:
        sorted_entries = sorted(entries, key=lambda entry: entry.name)
    for entry in sorted_entries:
        name = os.path.join(path, entry.name)
        if entry.name in LEFT_OUT or entry.name.startswith(OURS):
            continue
        if entry.is_dir(follow_symlinks=False):
            if os.path.exists(os.path.join(entry.path, "pyvenv.cfg")):
                continue
            if any(number >= MANY_FILES for number, _ in enumerate(_files(entry.path))):
                contents.linked.append(name)
                continue
            contents.folders.append(name)
            _look_into(name, contents)
        elif entry.is_symlink() and not (entry.is_file() and _is_inside(entry.path, contents.folder)):
            contents.linked.append(name)
        elif entry.is_file():
            num_bytes = entry.stat().st_size
            if num_bytes > LARGE_BYTES or contents.num_bytes + num_bytes > MOST_BYTES:
                contents.linked.append(name)
            else:
                contents.copied.append(name)
                contents.num_bytes += num_bytes


def _is_inside(path: str, folder: str) -> bool:
    return os.path.realpath(path).startswith(os.path.realpath(folder) + os.sep)


def _files(folder: str) -> Iterator[str]:
    for _, folders, files in os.walk(folder):
        folders[:] = [name for name in folders if name not in LEFT_OUT]
        yield from files
