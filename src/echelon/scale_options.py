"""How a script is scaled: the command line chooses, the launcher writes it down, and each rank reads it."""

import json
from typing import NamedTuple

from .errors import UsageError

MODEL_PARALLEL = ("tensor", "context", "pipeline")
"""Ways to scale in which every rank has the whole batch, and a part of the model."""
DTENSOR = ("fsdp", "tensor")
"""Ways to scale that make DTensors of weights."""
OBSERVE = "observe"
"""In place of a way to scale: the script distributes itself, and is only recorded."""
VARIABLE = "ECHELON_SCALE"
"""In the environment of a rank: these options as JSON; absent where a script is left alone."""


class ScaleOptions(NamedTuple):
    """What `echelon run` asks for about scaling, apart from the number of ranks."""

    how: str = "data"
    """"data", "fsdp", "tensor", "context", "pipeline", "observe", or a class in a file of the user: "FILE.py:CLASS"."""
    checks_first_step: bool = True
    shards_evaluation: bool = False
    syncs_batch_norm: bool = False
    draws_all: bool = False
    """Of `--same-random`: whether random numbers that cost more are those of one device too."""
    keeps_batch: bool = False
    """Of `--per-device-batch`: whether each rank has the script's batch, so that the global batch is larger."""
    learning_rate: str = ""
    """Of `--scale-lr`: "linear", "sqrt", or the script's own."""
    num_shards: int = 0
    """Of `--exact`: in how many virtual shards a batch is computed, on however many ranks; 0: in none."""
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
    is_auto: bool = False
    """Whether the script was only read, and may turn out to share the work itself."""

    @property
    def splits_model(self) -> bool:
        """Whether ranks have whole batches, and parts of the model."""
        return self.how in MODEL_PARALLEL

    @property
    def is_of_user(self) -> bool:
        """Whether `how` names a class in a file of the user: FILE.py:CLASS."""
        return ".py:" in self.how

    def written(self) -> list[str]:
        """Return the options that differ from the default, as a person writes them: ["--scale-lr sqrt"]."""
        changed = [(name, getattr(self, name)) for name in _OPTIONS if getattr(self, name) != getattr(DEFAULT, name)]
        return [_OPTIONS[name] if isinstance(value, bool) else f"{_OPTIONS[name]} {value}" for name, value in changed]

    def to_json(self) -> str:
        """Return what `from_json` reads."""
        return json.dumps(self._asdict())

    @classmethod
    def from_json(cls, text: str) -> "ScaleOptions":
        """Return options; raise UsageError for a name or a type of value that they do not have.

        >>> ScaleOptions.from_json('{"how": "fsdp", "num_shards": 8}').num_shards
        8
        """
        try:
            values = json.loads(text)
        except ValueError as error:
            raise _refusal(f"{text!r} is no JSON: {error}") from error
        if not isinstance(values, dict):
            raise _refusal(f"{text!r} is no JSON object")
        for name, value in values.items():
            if name not in cls._fields:
                raise _refusal(f"there is no option {name!r}; the options are {', '.join(cls._fields)}")
            kind = type(cls._field_defaults[name])
            if type(value) is not kind and not (kind is float and type(value) is int):
                raise _refusal(f"{name} is {value!r}, which is not of type {kind.__name__}")
        return cls(**values)


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
}


def _refusal(what: str) -> UsageError:
    return UsageError(f"{VARIABLE}: {what}", hint=f"unset {VARIABLE}; echelon run sets it for each rank")
