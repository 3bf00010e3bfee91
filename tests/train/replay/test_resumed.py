"""What a resumed run reads of a checkpoint besides weights."""

from pathlib import Path
from typing import Any

from echelon.checkpoint import tensors_file
from echelon.checkpoint.tensors_file import SavedTensor
from echelon.train.replay.resumed import Resumed


class Folder:
    """A checkpoint, as far as it is read here."""

    def __init__(self, path: Path) -> None:
        self.path = str(path)


def test_random_numbers_of_one_rank(tmp_path: Path) -> None:
    """Those of rank 1 are not those of rank 10, whose name begins alike."""
    saved = {f"rng/rank-{rank}": SavedTensor("uint8", (rank + 1,), []) for rank in (1, 2, 10, 11)}
    (tmp_path / tensors_file.NAME).write_bytes(tensors_file.encode(saved))
    found: Any = Folder(tmp_path)
    resumed = Resumed(found, {}, is_on_disk=True)
    assert {name: one.shape for name, one in resumed.empty("rng/rank-1", is_whole_name=True).items()} == {
        "rng/rank-1": (2,)
    }
    assert len(resumed.empty("rng/")) == 4
