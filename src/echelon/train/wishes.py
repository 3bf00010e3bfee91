"""How a script is to be scaled, as the command line said it."""

from typing import Mapping, NamedTuple

LEARNING_RATES = {"": 0.0, "sqrt": 0.5, "linear": 1.0}
"""To which power of the number of ranks a learning rate is multiplied."""


class Wishes(NamedTuple):
    """What `echelon run --scale …` asked for."""

    how: str = "data"  # or "fsdp"
    checks_first_step: bool = True
    shards_evaluation: bool = False
    syncs_batch_norm: bool = False
    keeps_batch: bool = False
    """Whether each rank has the script's batch, and the global one is larger by the number of ranks."""
    learning_rate: str = ""
    num_shards: int = 0
    """Of `--exact`: in how many virtual shards a batch is computed, on however many ranks; 0 where none are wanted."""
    is_auto: bool = False
    """Whether the script was only read, and may turn out to share the work itself."""


DEFAULT = Wishes()


def read(environ: Mapping[str, str]) -> Wishes:
    """Return the wishes that the launcher passes on: ECHELON_SCALE=data, ECHELON_SCALE_WITH=shard-eval,sync-bn."""
    words = environ.get("ECHELON_SCALE_WITH", "").split(",")
    return Wishes(
        how=environ.get("ECHELON_SCALE", "data"),
        checks_first_step="no-check" not in words,
        shards_evaluation="shard-eval" in words,
        syncs_batch_norm="sync-bn" in words,
        keeps_batch="per-device-batch" in words,
        learning_rate=next((word[3:] for word in words if word.startswith("lr=")), ""),
        num_shards=next((int(word[6:]) for word in words if word.startswith("exact=")), 0),
        is_auto="auto" in words,
    )
