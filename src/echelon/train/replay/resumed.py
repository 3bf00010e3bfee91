"""The checkpoint that a run continues from: the newest on the disk, or after a failure in the memory of the nodes."""

import os
import sys
from typing import Any, NamedTuple

import torch

from ...checkpoint import safetensors, store, tensors_file
from ...orders import checkpoint
from ..checkpoints.newest import newest_in_memory, newest_on_disk
from ..scaling_error import ScalingError
from ..wire import groups, plain_data
from ..wire import world as worlds

AT_REQUEST, AT_STEP = "request", "step"
JOURNAL, FACTS = "journal.bin", "facts.bin"


class Resumed(NamedTuple):
    """A checkpoint, and what it says besides its tensors."""

    found: store.Checkpoint
    facts: dict[str, Any]
    is_on_disk: bool
    """Whether it was on the disk, and not in memory alone."""

    def is_place(self, kind: str, step: int) -> bool:
        """Say whether it was made at such a place, after so many steps."""
        return bool(self.facts["kind"] == kind and self.facts["step"] == step)

    def document(self, name: str) -> bytes:
        with open(os.path.join(self.found.path, name), "rb") as file:
            return file.read()

    def empty(self, start: str, *, is_whole_name: bool = False) -> dict[str, torch.Tensor]:
        """Return tensors to read into, for all names that begin with `start`, or for this name alone."""
        return {
            name: torch.empty(one.shape, dtype=safetensors.dtype_of(one.dtype))
            for name, one in tensors_file.read(self.found.path).items()
            if (name == start if is_whole_name else name.startswith(start))
        }


def find(order: checkpoint.CheckpointOrder, world: worlds.World) -> Resumed | None:
    """Return the newest whole checkpoint if this run continues one; tell about those that are left out."""
    if not order.resumes and not checkpoint.is_restarted(os.environ):
        return None
    disk = store.CheckpointStore(order.folder, order.keep)
    on_disk = newest_on_disk(disk, world.processes.rank, world.processes.size, groups.any_rank)
    for finding in on_disk.findings if world.processes.rank == 0 else ():
        sys.stderr.write(f"echelon: note: {finding}\n")
    newest = newest_in_memory(on_disk.newest, have_met=world.processes.size == 1)
    if newest is None:
        on_disk.refuse_none()
        return None
    if newest.manifest.about.get("kind") not in (AT_REQUEST, AT_STEP):
        raise ScalingError(f"{newest.path} is of a script that saved by itself", "start the script without --resume")
    resumed = Resumed(newest, {}, newest is on_disk.newest)
    return resumed._replace(facts=plain_data.decode(resumed.document(FACTS)))


_PATIENCE = 32
"""So many steps after the last round the optimizer is looked for again: a script may make new ones in each round."""


class Rounds:
    """The order in which optimizers step.

    >>> rounds = Rounds()
    >>> [rounds.ends(one) for one in [1, 2, 1, 2, 1, 2]]
    [False, False, False, True, False, True]
    """

    def __init__(self) -> None:
        self._last: int | None = None
        """The optimizer that ends a round; None: not known yet."""
        self._seen: list[int] = []
        self._before: set[int] = set()
        """What stepped before the last search: what is not among them may be new in each round."""
        self._since = 0

    def ends(self, optimizer: int) -> bool:
        self._since += 1
        if self._since > _PATIENCE:
            self._before, self._seen, self._last, self._since = {*self._seen, *self._before}, [], None, 0
        if self._last is None:
            self._look(optimizer)
        if optimizer != self._last:
            if len(self._seen) < 2 * _PATIENCE:
                self._seen.append(optimizer)
            return False
        self._since = 0
        return True

    def _look(self, optimizer: int) -> None:
        lasting = [one for one in self._seen if not self._before or one in self._before]
        if optimizer in lasting:
            self._last = lasting[-1]
