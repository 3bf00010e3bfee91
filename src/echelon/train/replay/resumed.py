"""The checkpoint that a run continues from: the newest on the disk, or after a failure in the memory of the nodes."""

import os
import sys
from typing import Any, Dict, NamedTuple, Optional

import torch

from ... import checkpoint_order
from ...checkpoint import safetensors, store, tensors_file
from .. import groups, plain_data
from .. import world as worlds
from ..checkpoints import in_memory, whole
from ..scaling_error import ScalingError

AT_REQUEST, AT_STEP = "request", "step"
JOURNAL, FACTS = "journal.bin", "facts.bin"


class Resumed(NamedTuple):
    """A checkpoint, and what it says besides its tensors."""

    found: store.Checkpoint
    facts: Dict[str, Any]
    is_on_disk: bool
    """Whether it was on the disk, and not in memory alone."""

    def is_place(self, kind: str, step: int) -> bool:
        """Say whether it was made at such a place, after so many steps."""
        return bool(self.facts["kind"] == kind and self.facts["step"] == step)

    def document(self, name: str) -> bytes:
        """Return the content of one of its small files."""
        return content_of(self.found, name)

    def empty(self, start: str, *, is_whole_name: bool = False) -> Dict[str, torch.Tensor]:
        """Return tensors to read into, for all names that begin with `start`, or for this name alone."""
        return {
            name: torch.empty(one.shape, dtype=safetensors.dtype_of(one.dtype))
            for name, one in tensors_file.read(self.found.path).items()
            if (name == start if is_whole_name else name.startswith(start))
        }


def find(order: checkpoint_order.Order, world: worlds.World) -> Optional[Resumed]:
    """Return the newest whole checkpoint if this run continues one; tell about those that are left out."""
    if not order.resumes and not checkpoint_order.is_restarted(os.environ):
        return None
    disk = store.Store(order.folder, order.keep)
    on_disk = whole.newest(disk, world.processes.rank, world.processes.size, groups.any_rank)
    for finding in on_disk.findings if world.processes.rank == 0 else ():
        sys.stderr.write("echelon: note: %s\n" % finding)
    newest = in_memory.newest(on_disk.newest, have_met=world.processes.size == 1)
    if newest is None:
        on_disk.refuse_none()
        return None
    if newest.manifest.about.get("kind") not in (AT_REQUEST, AT_STEP):
        raise ScalingError("%s is of a script that saved by itself" % newest.path, "start the script without --resume")
    return Resumed(newest, plain_data.decode(content_of(newest, FACTS)), newest is on_disk.newest)


def content_of(found: store.Checkpoint, name: str) -> bytes:
    """Return the content of a small file of a checkpoint."""
    with open(os.path.join(found.path, name), "rb") as file:
        return file.read()
