"""The newest checkpoint on the disk whose files are what was written: each rank reads a part of them."""

import os
from typing import Callable, List, NamedTuple, Optional, Tuple

from ...checkpoint import manifest as manifests
from ...checkpoint.store import Checkpoint, Entry, Store
from ..scaling_error import ScalingError

AnyRank = Callable[..., bool]
"""`any_rank(question, is_so=…)` says whether it is so on any rank; all ranks call it with the same words."""


_NOT_USED, _ELSEWHERE = "%s is not used: %s", "another rank found a file whose content is not what was written"


class OnDisk(NamedTuple):
    """What a folder of checkpoints has."""

    newest: Optional[Checkpoint]
    """The newest whole checkpoint."""
    findings: List[str]
    """A sentence for each that is not used."""
    folder: str
    num_damaged: int
    """The checkpoints that are newer, or all if none is whole."""

    def refuse_none(self) -> None:
        """Raise ScalingError if there are checkpoints and none is whole: the training would begin anew."""
        if self.newest is None and self.num_damaged:
            raise ScalingError(
                "none of the %d checkpoints in %s is whole" % (self.num_damaged, self.folder),
                "echelon checkpoint verify says what is wrong; or begin in another run directory",
            )


def newest(store: Store, rank: int, num_ranks: int, any_rank: AnyRank) -> OnDisk:
    """Find the newest whole checkpoint; ranks share its files, and read them with their checksums."""
    entries = store.newest_first()
    findings: List[Tuple[Entry, str]] = []
    place = 0
    while any_rank("is there a checkpoint %d" % place, is_so=place < len(entries)):
        entry = entries[place] if place < len(entries) else None
        altered = "" if entry is None else _altered(entry, rank, num_ranks)
        is_damaged = entry is None or bool(entry.finding or altered)
        if not any_rank("is checkpoint %d altered" % place, is_so=is_damaged) and entry and entry.manifest:
            told = [text for one, text in findings if one.manifest is not None or one.step > entry.step]
            return OnDisk(Checkpoint(entry.path, entry.manifest), told, store.folder, place)
        if entry is not None:
            findings.append((entry, altered or entry.finding or _NOT_USED % (os.path.basename(entry.path), _ELSEWHERE)))
        place += 1
    return OnDisk(None, [text for _, text in findings], store.folder, place)


def _altered(entry: Entry, rank: int, num_ranks: int) -> str:
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
