"""Find the newest state that the nodes of a restarted run hold together in memory, and give it to each of them."""

import json
import os
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Sequence, Tuple

from .. import exchange, host_memory, tensors_file
from ..errors import CheckpointError
from ..manifest import WrittenFile
from ..saver import text_of, versions_here
from ..store import Checkpoint, Store
from . import transfer
from .memory_saver import SAVE, SHARE_OF_AVAILABLE
from .nodes import Nodes

_NUM_KEPT = 2


class _Held(NamedTuple):
    """A part of a state that a node holds."""

    save: str
    step: int
    num_ranks: int
    about: Dict[str, Any]
    files: Dict[str, WrittenFile]


class _Inventory(NamedTuple):
    """What a rank tells the others; only the first rank of a node tells what the node holds."""

    available: int
    step_on_disk: int
    held: List[_Held]


class _Whole(NamedTuple):
    """A state of which the nodes hold all parts together."""

    held: _Held
    """Of one node."""
    places: Dict[str, List[int]]
    """By file: the nodes that hold it, as places in the list of leaders."""
    files: Dict[str, WrittenFile]


def newest(
    folder: str, step_on_disk: int, new_group: Callable[[List[int]], Any], say: Callable[[str], None]
) -> Optional[Checkpoint]:
    """Return the newest state in memory if it is newer than `step_on_disk`; all ranks call it, and get the same step.

    `folder` is that of this rank's node, empty if it has none; afterwards it has this state alone, whole. `new_group`
    makes a group of gloo of some ranks. Returns None if no state is whole, or is newer than that on disk: nothing is
    left in memory then.
    """
    rank = exchange.rank()
    nodes = Nodes([one.decode() for one in exchange.gather(folder.encode())])
    is_leader = rank == nodes.leader_of(rank)
    available = host_memory.available_bytes() if folder else 0
    inventory = _Inventory(available, step_on_disk, _held(folder) if is_leader else [])
    told = [_decoded(one) for one in exchange.gather(_encoded(inventory))]
    inventories = [told[leader] for leader in nodes.leaders]
    whole = _newest_whole([one.held for one in inventories])
    mistake = "" if whole is None else _why_not(whole, inventories)
    if whole is None or mistake or whole.held.step <= told[0].step_on_disk:
        mistakes = [mistake]
    else:
        group = new_group(nodes.leaders) if any(len(one) < len(inventories) for one in whole.places.values()) else None
        if is_leader:
            mistake = _completed(folder, whole, group, inventory.held)
        mistakes = [one.decode() for one in exchange.gather(mistake.encode())]
        if not any(mistakes):
            return _of_step(folder, whole.held.step)
    if is_leader:
        _keep_only(folder, -1)  # the training goes another way to these steps
    if whole is not None and any(mistakes):
        text = next(one for one in mistakes if one)
        say("the state of step %d in the memory of nodes cannot be used: %s" % (whole.held.step, text))
    return None


def _held(folder: str) -> List[_Held]:
    """Return what this node holds."""
    entries = Store(folder, _NUM_KEPT).entries() if folder else []
    manifests = [one.manifest for one in entries if not one.finding]
    return [
        _Held(str(one.about.get(SAVE, "")), one.step, one.num_ranks, dict(one.about), dict(one.files))
        for one in manifests
        if one is not None
    ]


def _encoded(inventory: _Inventory) -> bytes:
    held = [
        one._replace(files={name: list(file) for name, file in one.files.items()})  # type: ignore[misc]
        for one in inventory.held
    ]
    return json.dumps(inventory._replace(held=held)).encode()


def _decoded(content: bytes) -> _Inventory:
    available, step_on_disk, rows = json.loads(content)
    held = [_Held(*row) for row in rows]
    held = [one._replace(files={name: WrittenFile(*file) for name, file in one.files.items()}) for one in held]
    return _Inventory(available, step_on_disk, held)


def _newest_whole(inventories: Sequence[Sequence[_Held]]) -> Optional[_Whole]:
    """Return the newest state of which all files are somewhere."""
    saves: Dict[str, List[Tuple[int, _Held]]] = {}
    for place, inventory in enumerate(inventories):
        for held in inventory:
            saves.setdefault(held.save, []).append((place, held))
    for parts in sorted(saves.values(), key=lambda one: (one[0][1].step, one[0][1].save), reverse=True):
        places: Dict[str, List[int]] = {}
        files: Dict[str, WrittenFile] = {}
        for place, held in parts:
            for name, written in held.files.items():
                places.setdefault(name, []).append(place)
                files[name] = written
        needed = ["rank-%d.safetensors" % rank for rank in range(parts[0][1].num_ranks)]
        if all(name in files for name in [*needed, tensors_file.NAME]):
            return _Whole(parts[0][1], places, files)
    return None


def _why_not(whole: _Whole, inventories: Sequence[_Inventory]) -> str:
    """Return why a node cannot take the whole state, which is told before any file is sent; empty if all can."""
    for place, inventory in enumerate(inventories):
        missing = sum(one.num_bytes for name, one in whole.files.items() if place not in whole.places[name])
        if missing > inventory.available * SHARE_OF_AVAILABLE:
            return "a node lacks %.1f GiB of it, and has %.1f GiB of memory available" % (
                missing / 2**30, inventory.available / 2**30,
            )  # fmt: skip
    return ""


def _completed(folder: str, whole: _Whole, group: Any, mine: Sequence[_Held]) -> str:
    """Let this node hold the whole state; return why it cannot, or nothing."""
    try:
        _complete(folder, whole, group, mine)
    except (CheckpointError, OSError, RuntimeError, ValueError) as error:
        return text_of(error)
    return ""


def _complete(folder: str, whole: _Whole, group: Any, mine: Sequence[_Held]) -> None:
    """Get the files that this node lacks; publish the whole state, and remove the others."""
    held = next((one for one in mine if one.save == whole.held.save), None)
    own = {} if held is None else held.files
    store = Store(folder, _NUM_KEPT)
    draft = store.begin(whole.held.step)
    for name, written in sorted(whole.files.items()):
        target = os.path.join(draft.path, name)
        if name in own:
            os.link(os.path.join(store.path(whole.held.step), name), target)
        if group is not None and len(whole.places[name]) < group.size():
            transfer.broadcast(target, written, whole.places[name][0], group, is_kept=name not in own)
    draft.publish(whole.files, num_ranks=whole.held.num_ranks, about=whole.held.about, versions=versions_here())
    _keep_only(folder, whole.held.step)


def _keep_only(folder: str, step: int) -> None:
    """Remove the states of other steps: the training comes by them again."""
    store = Store(folder, _NUM_KEPT)
    for entry in store.entries() if folder else ():
        if entry.step != step:
            store.remove(entry.path)


def _of_step(folder: str, step: int) -> Optional[Checkpoint]:
    """Return the whole state of a step."""
    for entry in Store(folder, _NUM_KEPT).entries():
        if entry.step == step and entry.manifest is not None and not entry.finding:
            return Checkpoint(entry.path, entry.manifest)
    return None
