"""What is staged: data or software that is brought to the own disks of the nodes before a run."""

from __future__ import annotations

import os
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class StageRequest:
    """What one --stage-data asks for."""

    source: str
    """A folder or file, as an absolute path without links."""
    spelled: str
    """As the user wrote it."""
    target: str = ""
    """Where nodes shall see it; empty: in the folder of all that is staged."""
    is_shard: bool = False
    """Whether each node gets the files alone that its own ranks read: every N-th of the sorted names."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Staged:
    """A source with its place on the nodes."""

    source: str
    folder: str
    """Of its copy, in the folder of all that is staged."""
    target: str
    """The path that ranks use."""
    moved_from: tuple[str, ...] = ()
    """For software: the paths of it that its own files name."""
    is_shard: bool = False
    is_image: bool = False
    """Whether it is an image of a file system that is mounted at the target."""
    ranks_per_node: int = 1

    @property
    def name(self) -> str:
        return os.path.basename(self.source)

    @property
    def key(self) -> str:
        return os.path.basename(self.folder)

    @property
    def link(self) -> str:
        """Where nodes lay a link to the copy; with "/" at its end they mount it there; empty: nowhere."""
        if self.is_image:
            return self.target + os.sep
        return "" if self.target == copied(self.folder, self.source) else self.target


def copied(folder: str, source: str) -> str:
    """Return the path of the copy of a source."""
    return os.path.join(folder, "files", os.path.basename(source))
