"""The options of scaling: the command line chooses them, the launcher writes them, and each rank reads them."""

from collections.abc import Mapping
from typing import NamedTuple

from . import codec


class Kind(NamedTuple):
    """A way to scale, as far as other rooms must know it; its class has what ranks do."""

    place: str
    """Module and class in `train/parallelism`; the module is imported when it is chosen."""
    more_room: str
    """How to need less memory of a device; more is said after it."""
    refuses: Mapping[str, str]
    """Options that contradict it, each with the reason."""
    exact_place: str = ""
    """Module and class with `--exact`."""
    axis: str = ""
    """The axis of a layout that is estimated for it; empty: none is."""
    splits_model: bool = False
    """Whether every rank has the whole batch and a part of the model."""
    has_dtensors: bool = False
    """Whether weights become DTensors."""


_BY_LAYER = "fully_shard exchanges gradients layer by layer"
_WHOLE_BATCH = "every rank has the whole batch, "
_SPLIT = {
    "exact": "the ranks add up sums in another order than one device",
    "shard-eval": _WHOLE_BATCH + "and a part of the model, also in evaluation",
    "same-random": _WHOLE_BATCH + "so it draws the random numbers of one device anyway",
    "sync-bn": _WHOLE_BATCH + "so BatchNorm already has the statistics of this batch",
    "per-device-batch": _WHOLE_BATCH + "so no rank has a batch of its own",
    "scale-lr": _WHOLE_BATCH + "so the global batch is the script's",
    "watch-bits": "each rank has its own part of the model, so no two ranks have the same bits",
    "sync-every": "a rank that trains alone needs the whole model",
    "compress": _WHOLE_BATCH + "and the ranks exchange activations instead of gradients",
    "bucket-mb": _WHOLE_BATCH + "and the ranks exchange activations instead of gradients",
}
KINDS: dict[str, Kind] = {
    "data": Kind(
        "replicated:Replicated", "--scale fsdp shards weights, gradients and optimizer states over the ranks", {},
        exact_place="exact:ExactReplicated", axis="replicate",
    ),
    "fsdp": Kind(
        "fully_sharded:FullySharded", "use more ranks, each with fewer weights and fewer samples",
        {"sync-every": "a rank that trains alone needs all weights", "compress": _BY_LAYER, "bucket-mb": _BY_LAYER,
         "watch-bits": "each rank has its own shard, so no two ranks have the same bits"},
        exact_place="exact:ExactFullySharded", axis="shard", has_dtensors=True,
    ),
    "tensor": Kind(
        "tensor:Tensor", "use more ranks, each with a smaller part of every layer", _SPLIT,
        axis="tensor", splits_model=True, has_dtensors=True,
    ),
    "context": Kind(
        "context:Context", "use more ranks, each with a smaller part of every sequence", _SPLIT, splits_model=True,
    ),
    "pipeline": Kind(
        "pipeline:Pipeline", "use more ranks, each with fewer layers", _SPLIT, axis="pipeline", splits_model=True,
    ),
}  # fmt: skip
"""The ways to scale, by their names for `--scale`, in the order in which they are offered."""
MODEL_PARALLEL = tuple(name for name, kind in KINDS.items() if kind.splits_model)
"""Ways to scale that give every rank the whole batch and a part of the model."""
DTENSOR = tuple(name for name, kind in KINDS.items() if kind.has_dtensors)
"""Ways to scale that turn weights into DTensors."""
OBSERVE = "observe"  # instead of a way to scale: the script distributes itself, and is only recorded
AUTO_FIT = "auto-fit"
"""Before the start the script is traced, and the simplest way to scale it that fits into memory is taken."""
VARIABLE = "ECHELON_SCALE"
"""The environment variable that gives a rank these options as JSON; absent if a script is not scaled."""


class ScaleOptions(NamedTuple):
    """The options of `echelon run` about scaling, apart from the number of ranks."""

    how: str = "data"
    """A name of KINDS, "observe", or a class in a file of the user: "FILE.py:CLASS"."""
    checks_first_step: bool = True
    shards_evaluation: bool = False
    syncs_batch_norm: bool = False
    draws_all: bool = False
    """`--same-random`: whether random numbers are those of one device even where that costs more."""
    keeps_batch: bool = False
    """`--per-device-batch`: whether each rank has the script's batch size, so that the global batch is larger."""
    learning_rate: str = ""
    """`--scale-lr`: "linear" or "sqrt"; empty: the script's own rate."""
    num_shards: int = 0
    """`--exact`: the number of virtual shards of a batch, on any number of ranks; 0: none."""
    steps_alone: int = 0
    """`--sync-every`: the steps between averages of the weights; 0: ranks exchange gradients in each step."""
    outer_learning_rate: float = 1.0
    outer_momentum: float = 0.0
    is_late: bool = False
    """`--async`: whether an average is applied one meeting later."""
    compress: str = ""
    """The format of gradients in transit: "bf16", "fp16", "powersgd:RANK:STEP"; empty: their own."""
    bucket_megabytes: float = 0.0
    """The bucket size of gradients in MB; 0: chosen by measurements."""
    watches_bits: bool = False
    """`--watch-bits`: whether ranks compare the bits of weights, gradients and optimizer states; `--exact` does."""
    is_auto: bool = False
    """Whether the script was only read, and may turn out to distribute itself."""

    @property
    def is_model_parallel(self) -> bool:
        """Whether ranks have whole batches and parts of the model."""
        return self.how in MODEL_PARALLEL

    @property
    def is_of_user(self) -> bool:
        """Whether `how` names a class in a file of the user: FILE.py:CLASS."""
        return ".py:" in self.how

    def written(self) -> list[str]:
        """Return the options that differ from the default, as the command line writes them: ["--scale-lr sqrt"]."""
        changed = [(name, getattr(self, name)) for name in _OPTIONS if getattr(self, name) != getattr(DEFAULT, name)]
        return [_OPTIONS[name] if isinstance(value, bool) else f"{_OPTIONS[name]} {value}" for name, value in changed]

    def to_json(self) -> str:
        return codec.write(self)

    @classmethod
    def from_json(cls, text: str) -> "ScaleOptions":
        """Return the options from JSON; raise UsageError for an unknown name or a value of another type.

        >>> ScaleOptions.from_json('{"how": "fsdp", "num_shards": 8}').num_shards
        8
        """
        return codec.decode(text, VARIABLE, cls)


DEFAULT = ScaleOptions()
_OPTIONS = {
    "checks_first_step": "--no-check",
    "shards_evaluation": "--shard-eval",
    "syncs_batch_norm": "--sync-bn",
    "draws_all": "--same-random",
    "keeps_batch": "--per-device-batch",
    "learning_rate": "--scale-lr",
    "num_shards": "--exact",
    "steps_alone": "--sync-every",
    "outer_learning_rate": "--outer-lr",
    "outer_momentum": "--outer-momentum",
    "is_late": "--async",
    "compress": "--compress",
    "bucket_megabytes": "--bucket-mb",
    "watches_bits": "--watch-bits",
}
