"""Find the newest state that the nodes of a restarted run hold together in memory, and give it to each of them."""

import json
import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from ...environment.memory_left import available_bytes
from .. import exchange, tensors_file
from ..errors import CheckpointError
from ..manifest import WrittenFile
from ..saver import text_of, versions_here
from ..store import Checkpoint, CheckpointStore, Draft
from . import transfer
from .memory_saver import ATTEMPT, SAVE, SHARE_OF_AVAILABLE, NodeMarks, bytes_left

_NUM_KEPT = 2


class _Held(NamedTuple):
    """A part of a state that a node holds."""

    save: str
    step: int
    num_ranks: int
    about: dict[str, Any]
    files: dict[str, WrittenFile]


class _Inventory(NamedTuple):
    """What a rank tells the others; only the first rank of a node tells what the node holds."""

    available: int
    step_on_disk: int
    held: list[_Held]


class _Whole(NamedTuple):
    """A state; the nodes hold all of its parts together."""

    held: _Held
    """Of one node."""
    places: dict[str, list[int]]
    """By file: the nodes that hold it, as places in the list of leaders."""
    files: dict[str, WrittenFile]


def newest(
    folder: str,
    step_on_disk: int,
    attempt: int,
    new_group: Callable[[list[int]], Any],
    say: Callable[[str], None],
    num_ranks: int = 0,
) -> Checkpoint | None:
    """Return the newest state in memory if it is newer than `step_on_disk`; all ranks call it, and get the same step.

    `folder` is that of this rank's node, empty if it has none; afterwards it has this state alone, whole. `attempt` is
    the number of this attempt of the run; a state of a later attempt counts as newer. `new_group` makes a group of gloo
    of some ranks. With `num_ranks`, only states of so many ranks are used. Returns None if no state is whole, or is
    newer than that on disk: nothing is left in memory then.
    """
    rank = exchange.rank()
    nodes = NodeMarks([name.decode() for name in exchange.gather(folder.encode())])
    available = bytes_left(folder, available_bytes())
    inventory = _Inventory(available, step_on_disk, _held(folder) if rank in nodes.leaders else [])
    told = [_decoded(content) for content in exchange.gather(json.dumps(inventory).encode())]
    inventories = [told[leader] for leader in nodes.leaders]
    whole = _newest_whole([each.held for each in inventories], num_ranks)
    if whole is not None and whole.held.step > told[0].step_on_disk:
        mistake = _why_not(whole, inventories)
        if not mistake:
            mistake = _spread(folder, whole, nodes.leaders, attempt, new_group)
        if not mistake:
            return CheckpointStore(folder, _NUM_KEPT).latest()[0]
        say(f"the state of step {whole.held.step} in the memory of nodes cannot be used: {mistake}")
    if rank in nodes.leaders:
        _keep_only(folder, -1)  # the training goes another way to these steps
    return None


def _spread(folder: str, whole: _Whole, leaders: list[int], attempt: int, new_group: Callable[[list[int]], Any]) -> str:
    """Let each node hold the whole state; return why one of them cannot, equally on all ranks, or nothing."""
    mistake = ""
    try:
        lacks = any(len(places) < len(leaders) for places in whole.places.values())
        group = new_group(leaders) if lacks else None
        if exchange.rank() in leaders:
            _complete(folder, whole, group, leaders.index(exchange.rank()), attempt)
    except (CheckpointError, OSError, RuntimeError, ValueError) as error:
        mistake = text_of(error)
    return next((text.decode() for text in exchange.gather(mistake.encode()) if text), "")


def _held(folder: str) -> list[_Held]:
    """Return what this node holds; nothing if its folder cannot be read."""
    try:
        entries = CheckpointStore(folder, _NUM_KEPT).entries(deep=True) if folder else []
    except CheckpointError:
        return []
    manifests = [entry.manifest for entry in entries if entry.manifest is not None and not entry.finding]
    return [
        _Held(str(each.about.get(SAVE, "")), each.step, each.num_ranks, dict(each.about), dict(each.files))
        for each in manifests
    ]


def _decoded(content: bytes) -> _Inventory:
    available, step_on_disk, rows = json.loads(content)
    parts = [_Held(*row) for row in rows]
    return _Inventory(available, step_on_disk, [part._replace(files=_files(part.files)) for part in parts])


def _files(rows: Mapping[str, Any]) -> dict[str, WrittenFile]:
    return {name: WrittenFile(*fields) for name, fields in rows.items()}


def _newest_whole(inventories: Sequence[Sequence[_Held]], num_ranks: int) -> _Whole | None:
    """Return the newest state whose files are all on some node; if `num_ranks` is given, only one of so many ranks.

    A node that was away may have a state of a later step from an attempt before: the training went another way since.
    """
    saves: dict[str, list[tuple[int, _Held]]] = {}
    for place, inventory in enumerate(inventories):
        for held in inventory:
            saves.setdefault(held.save, []).append((place, held))
    for parts in sorted(saves.values(), key=lambda one: max(_order(held) for _, held in one), reverse=True):
        if num_ranks and parts[0][1].num_ranks != num_ranks:
            continue
        places: dict[str, list[int]] = {}
        files: dict[str, WrittenFile] = {}
        for place, held in parts:
            for name, written in held.files.items():
                places.setdefault(name, []).append(place)
                files[name] = written
        needed = [f"rank-{rank}.safetensors" for rank in range(parts[0][1].num_ranks)]
        if all(name in files for name in [*needed, tensors_file.NAME]):
            return _Whole(parts[0][1], places, files)
    return None


def _order(held: _Held) -> tuple[int, int, str]:
    return int(held.about.get(ATTEMPT, 0)), held.step, held.save


def _why_not(whole: _Whole, inventories: Sequence[_Inventory]) -> str:
    """Return why a node cannot take the whole state, which is told before any file is sent; empty if all can."""
    for place, inventory in enumerate(inventories):
        missing = sum(one.num_bytes for name, one in whole.files.items() if place not in whole.places[name])
        if missing > inventory.available * SHARE_OF_AVAILABLE:
            return (f"a node lacks {missing / 2**30:.1f} GiB of it, and has {inventory.available / 2**30:.1f} GiB "
            "of memory available")  # fmt: skip
    return ""


def _complete(folder: str, whole: _Whole, group: Any, place: int, attempt: int) -> None:
    """Get the files that this node lacks; publish the whole state, and remove the others.

    `place` is that of this node in the list of leaders. A node that cannot write takes part to the end, so that no
    other waits for it.
    """
    own = [name for name, places in whole.places.items() if place in places]
    store = CheckpointStore(folder, _NUM_KEPT)
    mistakes: list[CheckpointError] = []
    draft: Draft | None = None
    try:
        draft = store.begin(whole.held.step)
        for name in own:
            os.link(os.path.join(store.path(whole.held.step), name), os.path.join(draft.path, name))
    except (CheckpointError, OSError) as error:
        mistakes.append(CheckpointError(text_of(error)))
    target = folder if draft is None else draft.path
    for name, written in sorted(whole.files.items()):
        if group is not None and len(whole.places[name]) < group.size():
            is_kept = name not in own and draft is not None
            path = os.path.join(target, name)
            transfer.broadcast(path, written, whole.places[name][0], group, mistakes, is_kept=is_kept)
    if draft is None or mistakes:
        if draft is not None:
            draft.discard()
        raise mistakes[0]
    about = {**whole.held.about, ATTEMPT: attempt}
    draft.publish(whole.files, num_ranks=whole.held.num_ranks, about=about, versions=versions_here())
    _keep_only(folder, whole.held.step)


def _keep_only(folder: str, step: int) -> None:
    """Remove the states of other steps, to which the training comes again, and what killed ranks were writing."""
    kept = os.path.basename(CheckpointStore(folder).path(step)) if step >= 0 else ""
    for name in os.listdir(folder) if folder and os.path.isdir(folder) else ():
        if name.lstrip(".").startswith("step-") and name != kept:
            shutil.rmtree(os.path.join(folder, name), ignore_errors=True)
