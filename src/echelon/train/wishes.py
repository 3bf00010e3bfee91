"""How a script is to be scaled, as the command line said it."""

from typing import Mapping, NamedTuple

SPLITS = ("tensor", "context", "pipeline")
"""Ways to split a model among ranks that all have the whole batch."""
SPREAD = ("fsdp", "tensor")
"""Ways that make DTensors of weights."""
LEARNING_RATES = {"": 0.0, "sqrt": 0.5, "linear": 1.0}
"""To which power of the number of ranks a learning rate is multiplied."""


class Wishes(NamedTuple):
    """What `echelon run --scale …` asked for."""

    how: str = "data"  # or "fsdp", or one of SPLITS
    checks_first_step: bool = True
    shards_evaluation: bool = False
    syncs_batch_norm: bool = False
    keeps_batch: bool = False
    """Whether each rank has the script's batch, and the global one is larger by the number of ranks."""
    num_batches: int = 0
    """With that, of a run that is recorded: of how many ranks the global batch is; 0: of those that there are."""
    learning_rate: str = ""
    num_shards: int = 0
    """Of `--exact`: in how many virtual shards a batch is computed, on however many ranks; 0 where none are wanted."""
    steps_alone: int = 0
    """Of `--sync-every`: how many steps a rank trains alone before weights are averaged; 0: gradients are exchanged."""
    outer_learning_rate: float = 1.0
    outer_momentum: float = 0.0
    is_late: bool = False
    """Of `--async`: whether an average is taken in one meeting later."""
    compress: str = ""
    """As what gradients travel: "bf16", "fp16", "powersgd:RANK:STEP", or as they are."""
    bucket_megabytes: float = 0.0
    """Gradients that travel together; 0: as many as measurements say."""
    draws_all: bool = False
    """Of `--same-random`: whether random numbers that cost more are those of one device too."""
    is_auto: bool = False
    """Whether the script was only read, and may turn out to share the work itself."""

    @property
    def splits_model(self) -> bool:
        """Whether ranks have whole batches, and parts of the model."""
        return self.how in SPLITS


DEFAULT = Wishes()


def read(environ: Mapping[str, str]) -> Wishes:
    """Return the wishes that the launcher passes on: ECHELON_SCALE=data, ECHELON_SCALE_WITH=shard-eval,sync-bn."""
    words = environ.get("ECHELON_SCALE_WITH", "").split(",")
    values = dict(word.partition("=")[::2] for word in words)
    return Wishes(
        how=environ.get("ECHELON_SCALE", "data"),
        checks_first_step="no-check" not in words,
        shards_evaluation="shard-eval" in words,
        syncs_batch_norm="sync-bn" in words,
        keeps_batch="per-device-batch" in words,
        num_batches=int(environ.get("ECHELON_RECORD_BATCHES", 0)),
        learning_rate=values.get("lr", ""),
        num_shards=int(values.get("exact", 0)),
        steps_alone=int(values.get("sync-every", 0)),
        outer_learning_rate=float(values.get("outer-lr", 1.0)),
        outer_momentum=float(values.get("outer-momentum", 0.0)),
        is_late="async" in words,
        compress=values.get("compress", ""),
        bucket_megabytes=float(values.get("bucket-mb", 0.0)),
        draws_all="same-random" in words,
        is_auto="auto" in words,
    )
