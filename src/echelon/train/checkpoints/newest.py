"""The newest checkpoint on the disk whose files are what was written: each rank reads a part of them."""

import os
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from datetime import timedelta
from typing import Any, NamedTuple

from ...checkpoint import exchange
from ...checkpoint import manifest as manifests
from ...checkpoint.in_memory import memory_saver, recall
from ...checkpoint.store import Checkpoint, CheckpointFolder, CheckpointStore, has_checkpoint
from ...orders.checkpoint import ATTEMPT, MEMORY, is_restarted
from ..scaling_error import ScalingError
from ..wire import groups

AnyRank = Callable[..., bool]
"""`any_rank(question, is_so=…)` says whether it is so on any rank; all ranks call it with the same words."""


_NOT_USED, _ELSEWHERE = "%s is not used: %s", "another rank found a file whose content is not what was written"


class OnDisk(NamedTuple):
    newest: Checkpoint | None
    """The newest whole checkpoint."""
    findings: list[str]
    """A sentence for each that is not used."""
    folder: str
    num_damaged: int
    """The checkpoints that are newer, or all if none is whole."""

    def refuse_none(self) -> None:
        """Raise ScalingError if there are checkpoints and none is whole: the training would begin anew."""
        if self.newest is None and self.num_damaged:
            raise ScalingError(
                f"none of the {self.num_damaged} checkpoints in {self.folder} is whole",
                "echelon checkpoint verify says what is wrong; or begin in another run directory",
            )


def newest_on_disk(store: CheckpointStore, rank: int, num_ranks: int, any_rank: AnyRank) -> OnDisk:
    """Find the newest whole checkpoint; ranks share its files, and read them with their checksums."""
    entries = store.newest_first()
    findings: list[tuple[CheckpointFolder, str]] = []
    place = 0
    while any_rank(f"is there a checkpoint {place}", is_so=place < len(entries)):
        entry = entries[place] if place < len(entries) else None
        altered = "" if entry is None else _altered(entry, rank, num_ranks)
        is_damaged = entry is None or bool(entry.finding or altered)
        if not any_rank(f"is checkpoint {place} altered", is_so=is_damaged) and entry and entry.manifest:
            told = [text for one, text in findings if one.manifest is not None or one.step > entry.step]
            return OnDisk(Checkpoint(entry.path, entry.manifest), told, store.folder, place)
        if entry is not None:
            findings.append((entry, altered or entry.finding or _NOT_USED % (os.path.basename(entry.path), _ELSEWHERE)))
        place += 1
    return OnDisk(None, [text for _, text in findings], store.folder, place)


def _altered(entry: CheckpointFolder, rank: int, num_ranks: int) -> str:
    """Return what is wrong with the content of this rank's part of the files; empty if nothing is."""
    if entry.manifest is None or entry.finding:
        return ""
    names = sorted(entry.manifest.files)[rank::num_ranks]
    files = {name: entry.manifest.files[name] for name in names}
    try:
        manifests.check_content(entry.path, entry.manifest._replace(files=files))
    except manifests.Damage as damage:
        return _NOT_USED % (os.path.basename(entry.path), damage.message)
    return ""


def any_rank(_: str, *, is_so: bool) -> bool:
    """Say whether it is so on any rank; the ranks have met, and need no name for the question."""
    return b"1" in exchange.gather(b"%d" % is_so)


def refuse_other_steps(step: int) -> None:
    """Stop if the ranks have found checkpoints of different steps, as a slow file system may let them; -1: none."""
    steps = [int(content) for content in exchange.gather(b"%d" % step)]
    if len(set(steps)) > 1:
        raise ScalingError(
            f"rank 0 has found the checkpoint of step {steps[0]}, and another rank that of step "
            f"{next(other for other in steps if other != steps[0])}",
            "start the run again when the file system shows all ranks the same files",
        )


_TIMEOUT = timedelta(seconds=memory_saver.PATIENCE_SECONDS)


def new_saver(rank: int, num_ranks: int, say: Callable[[str], None]) -> memory_saver.MemorySaver:
    """Return what keeps the states of a training; without an agent of echelon it keeps none."""
    folder = os.environ.get(MEMORY)
    return memory_saver.MemorySaver(folder, rank, num_ranks, _new_group, say, attempt=_attempt())


def newest_in_memory(on_disk: Checkpoint | None, *, have_met: bool, num_ranks: int = 0) -> Checkpoint | None:
    """Return the newest state of an earlier attempt of this run: in memory, or on the disk; all ranks call it.

    Ranks that have not met yet meet for this alone, and only if a node holds a state. With `num_ranks`, only states of
    so many ranks in memory are used.
    """
    folder = os.environ.get(MEMORY)
    if folder is None or not is_restarted(os.environ):
        return on_disk
    is_somewhere = exchange.size() > 1 or has_checkpoint(folder)
    if not have_met:
        is_somewhere = groups.any_rank("is a state in memory", is_so=is_somewhere)
    if not is_somewhere:
        return on_disk
    step = on_disk.step if on_disk is not None else -1
    meeting: AbstractContextManager[None] = nullcontext() if have_met else groups.temporary(_TIMEOUT)
    try:
        with meeting:
            return recall.newest(folder, step, _attempt(), _new_group, _say, num_ranks) or on_disk
    except RuntimeError as error:  # the same on all ranks, for each of them needs the others
        _say("the states in the memory of nodes cannot be used: {}".format(str(error).partition("\n")[0]))
        return on_disk


def place_in_words(*, on_disk: bool) -> str:
    return "a checkpoint" if on_disk else "the memory of the nodes"


def _attempt() -> int:
    return int(os.environ.get(ATTEMPT, "0"))


def _new_group(ranks: list[int] | None = None) -> Any:
    return groups.new(ranks, backend="gloo", timeout=_TIMEOUT)


def _say(text: str) -> None:
    if os.environ.get("RANK", "0") == "0":
        sys.stderr.write(f"echelon: note: {text}\n")
