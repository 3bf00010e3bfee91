"""What `echelon prove` says of a training under a strategy: its own records and comparison, on ranks of these tests."""

import functools
import json
import tempfile
from contextlib import redirect_stdout
from io import StringIO
from typing import Any

from tests.train.strategies import ranks, training

from echelon.train.strategies.strategy import Strategy
from echelon.trials.proof import compare

EQUAL = (compare.EQUAL, compare.WITHIN)


@functools.cache
def _records() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix="records-")


def _folder() -> str:
    return tempfile.mkdtemp(dir=_records().name)


@functools.cache
def _alone(kind: str, precision: str, optimizer: str, clip: float, wishes: tuple[Any, ...]) -> list[str]:
    """Return where one device's record is, and its record with the rows of each batch in another order."""
    folders = [_folder(), _folder()]
    for is_reordered, folder in enumerate(folders):
        asked = kind, Strategy(precision=precision), optimizer, clip, dict(wishes)
        ranks.run(1, training.recorded, folder, bool(is_reordered), *asked)
    return folders


def train(
    num_ranks: int, kind: str, strategy: Strategy, optimizer: str, clip: float, **wishes: Any
) -> list[dict[str, Any]]:
    """Return what the ranks of a training say, which a proof must find to be that of one device."""
    folder, told = _folder(), StringIO()
    found = ranks.run(num_ranks, training.recorded, folder, False, kind, strategy, optimizer, clip, wishes)
    with redirect_stdout(told):
        alone = _alone(kind, strategy.precision, optimizer, clip, tuple(wishes.items()))
        compare.main([*alone, folder, str(num_ranks), "scaled"])
    verdict = json.loads(told.getvalue())
    assert verdict["verdict"] in EQUAL, verdict
    assert verdict["num_telling"] == len(verdict["steps"]) == training.models.NUM_STEPS
    assert {row["kind"] for row in verdict["tensors"]} == {"start", "gradients", "states", "parameters"}
    assert {row["step"] for row in verdict["tensors"]} == {1, 2}  # before, and after it was saved and loaded
    return found
