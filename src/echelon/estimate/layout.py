"""Describe how a training is laid over ranks, as far as memory depends on it."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

from echelon.errors import UsageError

AXES = ("replicate", "shard", "tensor", "pipeline")
ALWAYS, AFTER_BACKWARD, NEVER = "always", "after-backward", "never"
RESHARD = (ALWAYS, AFTER_BACKWARD, NEVER)
TRACED = "traced"
POLICY = "bf16-policy"
PRECISIONS = (TRACED, "bf16", POLICY)
_PRECISION_NAMES = {"bf16": "bf16", POLICY: "bf16 policy"}
OPTIMIZERS = (TRACED, "adam8bit")


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """The axes and options of `echelon.Strategy` that change a rank's memory, and two changes of the script.

    UsageError says which values contradict each other.

    >>> Layout(shard=8, checkpointing=True).name
    'FSDP + checkpointing'
    """

    replicate: int = 1
    shard: int = 1
    tensor: int = 1
    pipeline: int = 1
    reshard: str = ALWAYS
    offload: bool = False
    """Sharded weights, gradients and optimizer states lie in the host's memory."""
    checkpointing: bool = False
    """Of each block's forward only the output is kept; the rest is computed again in backward."""
    precision: str = TRACED
    """bf16: weights, gradients, optimizer states and activations are 16-bit, as after `model.bfloat16()`.

    bf16-policy: fully_shard gathers weights and computes in 16 bits, by its MixedPrecisionPolicy(param_dtype=bfloat16,
    reduce_dtype=float32); shards, optimizer states, the reduced gradients, logits and loss stay in 32 bits.
    """
    optimizer: str = TRACED
    """adam8bit: optimizer states are 8-bit, as in bitsandbytes."""
    accumulation: int = 1
    """The parts of a rank's rows that are computed one after another; a pipeline's micro-batches."""
    rows: int = 0
    """The rows of the batch of all ranks together; 0: as traced."""

    def __post_init__(self) -> None:
        for name in (*AXES, "accumulation"):
            if getattr(self, name) < 1:
                raise UsageError(f"{name} is {getattr(self, name)}, but must be at least 1", hint=f"{name}=1")
        for name, words in (("reshard", RESHARD), ("precision", PRECISIONS), ("optimizer", OPTIMIZERS)):
            if getattr(self, name) not in words:
                raise UsageError(
                    f"{name} is {getattr(self, name)!r}; the choices are {', '.join(words)}",
                    hint=f'{name}="{words[0]}"',
                )
        if self.reshard == NEVER and self.shard > 1 and (self.tensor > 1 or self.pipeline > 1):
            raise UsageError(
                f'shard={self.shard} with reshard="never" (ZeRO-1) and an axis that cuts weights do not work together',
                hint='reshard="after-backward"',
            )
        if self.offload and (self.shard == 1 or self.reshard == NEVER):
            raise UsageError("offload needs sharded weights: shard above 1, and reshard not never", hint="shard=2")
        if self.precision == POLICY and not self.is_fully_sharded:
            raise UsageError(
                f'precision="{POLICY}" is a policy of fully_shard: it needs sharded weights, reshard not never',
                hint="shard=2",
            )
        if self.pipeline > 1 and self.accumulation < self.pipeline:
            raise UsageError(
                f"accumulation is {self.accumulation}, but the pipeline has {self.pipeline} stages",
                hint=f"accumulation={self.pipeline}",
            )

    @property
    def num_ranks(self) -> int:
        """The product of the axes."""
        return self.replicate * self.shard * self.tensor * self.pipeline

    @property
    def num_data(self) -> int:
        """The number of parts into which the rows of a batch are cut."""
        return self.replicate * self.shard

    @property
    def is_fully_sharded(self) -> bool:
        """Whether fully_shard holds the weights; it also replicates weights that another axis has cut."""
        is_cut = self.tensor > 1 or self.pipeline > 1
        return (self.shard > 1 and self.reshard != NEVER) or (self.replicate > 1 and is_cut)

    @property
    def has_bucket_views(self) -> bool:
        """Whether gradients are views of DDP's buckets, as `run.parallelize()` asks of DDP.

        Under `--scale data` they are tensors of their own: a script may keep them, or detach them in place.
        """
        return self.shard > 1 or self.checkpointing

    @property
    def name(self) -> str:
        """The words of the strategy, and of each option that is not the default."""
        words = [self._data_name] if self.num_data > 1 else []
        words += ["tensor"] if self.tensor > 1 else []
        words += ["pipeline"] if self.pipeline > 1 else []
        words = words or ["one device"]
        words += ["offload"] if self.offload else []
        words += ["checkpointing"] if self.checkpointing else []
        words += [_PRECISION_NAMES[self.precision]] if self.precision != TRACED else []
        words += ["8-bit Adam"] if self.optimizer == "adam8bit" else []
        if self.accumulation > 1 and self.pipeline == 1:
            words.append(f"accumulation {self.accumulation}")
        return " + ".join(words)

    @property
    def _data_name(self) -> str:
        if self.shard == 1:
            return "data"
        if self.reshard == NEVER:
            return "ZeRO-1"
        if self.replicate > 1:
            return "HSDP"
        return "FSDP" if self.reshard == ALWAYS else "ZeRO-2"

    @property
    def code(self) -> str:
        """The argument of `run.parallelize()` for what is a strategy of echelon."""
        values = {name: getattr(self, name) for name in (*AXES, "reshard", "offload", "accumulation")}
        usual = {field.name: field.default for field in dataclasses.fields(self)}
        words = [f"{name}={_quoted(value)}" for name, value in values.items() if value != usual[name]]
        words += ['checkpointing="full"'] if self.checkpointing else []
        words += ['precision="bf16"'] if self.precision == POLICY else []
        return f"Strategy({', '.join(words)})"

    def changed(self, **changes: Any) -> Layout:
        return dataclasses.replace(self, **changes)

    def has_rows(self, traced: int) -> bool:
        """Say whether each rank gets a row of a batch of `traced` rows; 0 rows are an unknown number."""
        return not traced or (self.rows or traced) >= self.num_data * self.accumulation

    def rows_of_micro_batch(self, traced: int) -> int:
        """Return the most rows that a rank computes at once; `traced` are those of the traced batch."""
        rows, parts = self.rows or traced, self.num_data * self.accumulation
        if rows < parts:
            cut = f"{self.num_data} ranks × {self.accumulation} micro-batches"
            raise UsageError(f"a batch of {rows} rows cannot be cut into {cut}", hint=f"rows={parts}")
        return -(-rows // parts)


def _quoted(value: object) -> str:
    return f'"{value}"' if isinstance(value, str) else str(value)


def share(num_bytes: int, num_ranks: int, *, length: int = 0) -> int:
    """Return the bytes of the largest part; with a length, a tensor is cut along this dim and whole rows are dealt.

    >>> share(100, 3), share(100, 3, length=10)
    (34, 40)
    """
    if num_ranks == 1:
        return num_bytes
    if length:
        return -(-length // num_ranks) * (num_bytes // length)
    return -(-num_bytes // num_ranks)
