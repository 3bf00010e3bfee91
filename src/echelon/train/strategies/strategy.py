"""Describe how a training is split, by a value that is checked when it is made. This module needs no torch."""

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import Any

from ...errors import UsageError

AXES = ("replicate", "shard", "tensor", "pipeline", "context")
RESHARD = ("always", "after-backward", "never")
PRECISIONS = ("fp32", "bf16", "fp16")
CHECKPOINTING = ("none", "selective", "full")
SCHEDULES = {
    "gpipe": "ScheduleGPipe",
    "1f1b": "Schedule1F1B",
    "interleaved": "ScheduleInterleaved1F1B",
    "looped-bfs": "ScheduleLoopedBFS",
    "zero-bubble": "ScheduleInterleavedZeroBubble",
    "zbv": "ScheduleZBVZeroBubble",
    "dualpipev": "ScheduleDualPipeV",
}
"""Our words for PyTorch's schedules."""
SINGLE = ("gpipe", "1f1b")
SHAPED_LIKE_V = ("zbv", "dualpipev")
SPLIT_BACKWARD = ("zero-bubble", "zbv", "dualpipev")
ATTENTIONS = ("all-gather", "ring")
NUM_OFFERED = 3


class StrategyError(UsageError):
    """A strategy that cannot be applied; nothing was changed."""

    is_told_briefly = True

    def __str__(self) -> str:
        return f"{self.message}\n  way out: {self.hint}" if self.hint else self.message


StrategyError.__module__ = "echelon"  # as people know it, from wherever it was imported


@dataclass(frozen=True)
class Strategy:
    """How a model and its batches are spread over ranks.

    The product of the five axes (`replicate`, `shard`, `tensor`, `pipeline`, `context`) is the number of ranks.
    StrategyError says which values contradict each other, or are none of the choices.

    >>> strategy = Strategy(shard=4, tensor=2, precision="bf16")
    >>> strategy.num_ranks, strategy.num_data
    (8, 4)
    >>> strategy.as_code()
    "Strategy(shard=4, tensor=2, precision='bf16')"
    """

    replicate: int = 1
    """Copies of the model, each with its own rows of the batch."""
    shard: int = 1
    """Ranks among which weights, gradients and optimizer states are spread, each with its own rows of the batch."""
    tensor: int = 1
    """Ranks among which each layer's matrices are cut."""
    pipeline: int = 1
    """Ranks among which the layers are laid one after another."""
    context: int = 1
    """Ranks among which each sequence is cut."""
    reshard: str = "always"
    """When gathered weights are freed: after each block's forward and backward (ZeRO-3), after backward (ZeRO-2), or
    never, so that only optimizer states are spread (ZeRO-1)."""
    offload: bool = False
    """Keep the spread weights and optimizer states in the host's memory."""
    precision: str = "fp32"
    """In which numbers the model computes: "fp32", "bf16" or "fp16"; weights and optimizer states stay in fp32."""
    checkpointing: str = "none"
    """Which activations are computed again in backward: none, all but those of matrix products, or all."""
    compile: bool = False
    """Compile each block."""
    accumulation: int = 1
    """Parts into which a rank's rows are cut, computed one after another; a pipeline's micro-batches."""
    sequence_parallel: bool = False
    """Let the tensor axis cut sequences between the cut layers."""
    parallel_loss: bool = False
    """Compute the loss from logits that stay cut along the tensor axis."""
    schedule: str = "1f1b"
    """In which order a pipeline computes its micro-batches."""
    stages_per_rank: int = 2
    """Stages that each rank of a looping schedule has."""
    split: tuple[str, ...] = ()
    """The modules that begin a stage, but for the first; empty: balanced by the number of weights."""
    attention: str = "all-gather"
    """How the context axis brings keys and values together."""

    def __post_init__(self) -> None:
        for name in (*AXES, "accumulation", "stages_per_rank"):
            count = getattr(self, name)
            if not isinstance(count, int) or isinstance(count, bool) or count < 1:
                raise StrategyError(f"{name} is {count!r}, but must be a number of at least 1", hint=f"{name}=1")
        for name, words in (
            ("reshard", RESHARD),
            ("precision", PRECISIONS),
            ("checkpointing", CHECKPOINTING),
            ("schedule", tuple(SCHEDULES)),
            ("attention", ATTENTIONS),
        ):
            if getattr(self, name) not in words:
                raise StrategyError(
                    "{} is {!r}; the choices are {}".format(name, getattr(self, name), ", ".join(words)),
                    hint=f'{name}="{words[0]}"',
                )
        object.__setattr__(self, "split", tuple(self.split))
        _check_composition(self)
        _check_pipeline(self)

    @property
    def num_ranks(self) -> int:
        """The number of ranks: the product of the axes."""
        return self.replicate * self.shard * self.tensor * self.pipeline * self.context

    @property
    def num_data(self) -> int:
        """The number of parts into which a batch's rows are cut."""
        return self.replicate * self.shard

    @property
    def num_stages(self) -> int:
        """The stages of the whole pipeline."""
        return self.pipeline if self.schedule in SINGLE else self.pipeline * self.stages_per_rank

    @property
    def alone(self) -> "Strategy":
        """The strategy of the same training on one device, the reference of a proof."""
        return Strategy(precision=self.precision)

    @property
    def spreads_states_only(self) -> bool:
        """Whether this is ZeRO-1."""
        return self.shard > 1 and self.reshard == "never"

    @property
    def is_fully_sharded(self) -> bool:
        """Whether fully_shard does the work: to shard weights, or to replicate weights that another axis has cut."""
        is_cut = self.tensor > 1 or self.pipeline > 1 or self.context > 1
        return self.offload or (self.shard > 1 and self.reshard != "never") or (self.replicate > 1 and is_cut)

    def __str__(self) -> str:
        axes = " × ".join(f"{name} {getattr(self, name):d}" for name in AXES)
        words = ["{} = {}".format(axes, "1 rank" if self.num_ranks == 1 else f"{self.num_ranks} ranks")]
        options = [field.name for field in fields(self) if field.name not in AXES]
        words += ["{} {}".format(name.replace("_", " "), _as_word(getattr(self, name))) for name in options]
        return " · ".join(words)

    def as_code(self) -> str:
        """Return the code that makes this value, with the arguments that differ from their defaults."""
        values = {one.name: getattr(self, one.name) for one in fields(self)}
        changed = [f"{one.name}={values[one.name]!r}" for one in fields(self) if values[one.name] != one.default]
        return "Strategy({})".format(", ".join(changed))

    def check_ranks(self, num_ranks: int) -> None:
        """Refuse axes that do not multiply to the number of ranks; offer the nearest that do."""
        if self.num_ranks != num_ranks:
            axes = " × ".join(f"{name} {getattr(self, name):d}" for name in AXES)
            raise StrategyError(
                f"{axes} = {self.num_ranks}, but the number of ranks is {num_ranks}",
                hint=f"{', '.join(near.as_code() for near in _nearest(self, num_ranks))}; "
                f"or echelon run -n {self.num_ranks} …",
            )


def _as_word(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, tuple):
        return ", ".join(value) or "balanced"
    return str(value)


def _nearest(strategy: Strategy, num_ranks: int) -> list[Strategy]:
    """Return the strategies with this number of ranks whose axes are nearest, by powers of two."""
    sizes = [getattr(strategy, name) for name in AXES]
    ranked = sorted(
        _factors(num_ranks, len(AXES)),
        key=lambda ones: (  # among equally near strategies, those with more replicas come first
            sum(abs(math.log2(one / old)) for one, old in zip(ones, sizes, strict=False)),
            [-one for one in ones],
        ),
    )
    return list(itertools.islice(_valid(strategy, ranked), NUM_OFFERED))


def _valid(strategy: Strategy, ranked: list[tuple[int, ...]]) -> Iterator[Strategy]:
    values: dict[str, Any] = {one.name: getattr(strategy, one.name) for one in fields(strategy)}
    for sizes in ranked:
        try:
            yield Strategy(**{**values, **dict(zip(AXES, sizes, strict=False))})
        except StrategyError:
            pass  # an invalid strategy is not offered


def _factors(number: int, count: int) -> Iterator[tuple[int, ...]]:
    if count == 1:
        yield (number,)
        return
    for first in range(1, number + 1):
        if number % first == 0:
            for rest in _factors(number // first, count - 1):
                yield (first, *rest)


def _check_composition(strategy: Strategy) -> None:
    """Refuse options that exclude each other, and say why."""
    is_cut = strategy.tensor > 1 or strategy.pipeline > 1 or strategy.context > 1
    _refuse(
        strategy.spreads_states_only and is_cut,
        f'shard={strategy.shard} with reshard="never" (ZeRO-1) and {_others(strategy)} do not work together: '
        "ZeroRedundancyOptimizer distributes whole tensors, and this axis cuts them",
        'use reshard="after-backward", which shards the optimizer states too',
    )
    _refuse(
        strategy.offload and strategy.reshard == "never",
        'offload and reshard="never" exclude each other: reshard="never" keeps weights on every device, and '
        "offload keeps them in the host's memory",
        'reshard="always"',
    )
    _refuse(
        strategy.context > 1 and strategy.tensor > 1,
        f"tensor={strategy.tensor} and context={strategy.context} exclude each other: both give a block its "
        "activations as DTensors, each on its own mesh",
        "use sequence_parallel=True, which cuts sequences along the tensor axis",
    )
    _refuse(
        strategy.context > 1 and strategy.pipeline > 1,
        f"pipeline={strategy.pipeline} and context={strategy.context} exclude each other: stages send plain tensors, "
        "but the context axis makes DTensors",
        "use context=1, or pipeline=1",
    )
    _refuse(
        strategy.tensor > 1 and strategy.pipeline > 1 and strategy.sequence_parallel,
        f"pipeline={strategy.pipeline} and sequence_parallel exclude each other: a stage may begin where "
        "the sequence is cut",
        "sequence_parallel=False",
    )
    for word in ("sequence_parallel", "parallel_loss"):
        _refuse(
            getattr(strategy, word) and strategy.tensor == 1,
            f"{word} needs a tensor axis, but tensor is 1",
            "tensor=2",
        )
    _refuse(
        strategy.parallel_loss and strategy.pipeline > 1,
        f"pipeline={strategy.pipeline} and parallel_loss exclude each other: the last stage returns a plain tensor",
        "parallel_loss=False",
    )


def _check_pipeline(strategy: Strategy) -> None:
    if strategy.pipeline == 1:
        _refuse(bool(strategy.split), "split names modules, but pipeline is 1", f"pipeline={len(strategy.split) + 1}")
        return
    _refuse(
        strategy.accumulation < strategy.num_stages,
        f"accumulation is {strategy.accumulation}, but the pipeline has {strategy.num_stages} stages: with fewer "
        "micro-batches than stages some ranks always wait",
        f"accumulation={strategy.num_stages}",
    )
    _refuse(
        strategy.schedule in SHAPED_LIKE_V and strategy.stages_per_rank != 2,
        f"the schedule {strategy.schedule} needs 2 stages per rank, but stages_per_rank is {strategy.stages_per_rank}",
        "stages_per_rank=2",
    )
    _refuse(
        strategy.schedule in ("interleaved", "zero-bubble") and strategy.accumulation % strategy.pipeline != 0,
        f"accumulation is {strategy.accumulation}, but {strategy.schedule} needs a multiple of {strategy.pipeline}",
        f"accumulation={-(-strategy.accumulation // strategy.pipeline) * strategy.pipeline}",
    )
    _refuse(
        strategy.schedule in SPLIT_BACKWARD and (strategy.compile or strategy.checkpointing != "none"),
        "{} and {} exclude each other: the schedule splits backward into two passes, for inputs and for "
        "weights, over the graph of the forward pass".format(
            strategy.schedule, "compile" if strategy.compile else f"checkpointing={strategy.checkpointing!r}"
        ),
        'schedule="interleaved"',
    )
    _refuse(
        strategy.schedule in SPLIT_BACKWARD and strategy.shard > 1 and strategy.reshard == "always",
        f'{strategy.schedule} with shard={strategy.shard} and reshard="always": fully_shard frees a block\'s weights '
        "between the two backward passes, and gradients are silently wrong (PyTorch 2.13)",
        'reshard="after-backward"',
    )
    _refuse(
        len(strategy.split) not in (0, strategy.num_stages - 1),
        f"split names {len(strategy.split)} modules, but {strategy.num_stages} stages need "
        f"{strategy.num_stages - 1} of them",
        "name the first module of every stage except the first stage",
    )


def _others(strategy: Strategy) -> str:
    return ", ".join(f"{name}={getattr(strategy, name):d}" for name in AXES[2:] if getattr(strategy, name) > 1)


def _refuse(is_wrong: bool, message: str, hint: str) -> None:
    if is_wrong:
        raise StrategyError(message, hint=hint)
