"""The options of `echelon run` that say what ranks exchange, and how often."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from echelon.errors import UsageError, seen
from echelon.orders.scale import AUTO_FIT, KINDS, ScaleOptions

OUTER_LEARNING_RATE, OUTER_MOMENTUM = "0.7", "0.9"
"""The defaults of DiLoCo's outer optimizer: Douillard et al., arXiv 2311.08105, appendix (hyper-parameters)."""
POWERSGD_RANK, POWERSGD_STEP = 1, 1000
"""PyTorch's own defaults: torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook.PowerSGDState."""
MOST_STEPS = 1 << 30
SCALES = ("auto", "off", *KINDS, AUTO_FIT)

_ALONE = {
    "exact": "ranks that train alone get other weights than one device, so they cannot match its bits",
    "same-random": "a rank that trains alone draws its own random numbers",
    "sync-bn": "statistics over the batch of all ranks need a message in every step",
    "watch-bits": "a rank that trains alone has other weights than the others until they meet",
    "compress": "it compresses gradients, but the ranks exchange none",
    "bucket-mb": "it puts gradients into buckets, but the ranks exchange none",
}
"""Options that contradict `--sync-every`, each with the reason."""
_NOT_EXACT = {
    "per-device-batch": "the global batch would depend on the number of ranks",
    "same-random": "each shard draws its own random numbers, from a key",
    "sync-bn": "statistics over the batch need every shard, but echelon computes each shard separately",
}
"""Options that contradict `--exact`, each with the reason."""
_WHOLE_GRADIENTS = {"exact": "an exact run adds up its gradients with its own binary tree, to the bit"}


def fields(values: Mapping[str, str]) -> dict[str, Any]:
    """Return the fields of ScaleOptions that the options set; raise UsageError where options contradict each other."""
    _refuse_with_scale("watch-bits", values, "remove --watch-bits, or use --scale data")
    if "exact" in values:
        _refuse_together("exact", values, _NOT_EXACT)
    if "sync_every" not in values:
        for option in ("outer-lr", "outer-momentum", "async"):
            key = option.replace("-", "_")
            if key in values:
                option_words = f"--{option} {values[key]}".rstrip()
                raise UsageError(
                    f"--{option} needs --sync-every: it is for ranks that train alone and meet",
                    hint=f"echelon run --sync-every 100 {option_words} …",
                )
        return {**_compression(values), **_buckets(values)}
    number = values["sync_every"]
    if not re.fullmatch(r"[0-9]{1,10}", number) or not 1 <= int(number) <= MOST_STEPS:
        raise UsageError(
            f"--sync-every {seen(number)}: give the number of steps between two meetings, at least 1",
            hint="echelon run --sync-every 100 …",
        )
    _refuse_together("sync-every", values, _ALONE)
    _refuse_with_scale("sync-every", values, "echelon run --scale data --sync-every … or remove --sync-every")
    chosen: dict[str, Any] = {"steps_alone": int(number), "is_late": "async" in values}
    if "outer_lr" in values or "outer_momentum" in values:
        chosen["outer_learning_rate"] = _rate(values.get("outer_lr", OUTER_LEARNING_RATE))
        chosen["outer_momentum"] = _momentum(values.get("outer_momentum", OUTER_MOMENTUM))
    return chosen


def accepts(options: ScaleOptions | None, more: str, *, saves: bool = False) -> bool:
    """Say whether a run with these options would take one more; None: the script is not scaled.

    `saves` tells whether the run has --checkpoint-every.

    >>> accepts(ScaleOptions(), "--compress bf16"), accepts(ScaleOptions(how="fsdp"), "--compress bf16")
    (True, False)
    """
    if options is None:
        return False
    saving = ["--checkpoint-every 10m"] if saves else []
    return accepts_with([f"--scale {options.how}", *options.written(), *saving], more)


def accepts_with(words: Sequence[str], more: str) -> bool:
    """Say whether options that a command line gave would take one more.

    >>> accepts_with(["--scale fsdp", "--share-devices"], "--compress bf16")
    False
    """
    values, asked = _values(words), _values([more])
    is_of_user = ScaleOptions(values.get("scale", "data")).is_of_user
    return not is_of_user and not asked.keys() & values.keys() and _are_possible({**values, **asked})


def goes_with(options: ScaleOptions, how: str) -> bool:
    """Say whether options that were given go with a way to scale."""
    return _are_possible({**_values(options.written()), "scale": how})


def _values(words: Sequence[str]) -> dict[str, str]:
    """Return options as the command line's reader does: --sync-every 8 is {"sync_every": "8"}."""
    parts = [option.removeprefix("--").partition(" ") for option in words]
    return {name.replace("-", "_"): text for name, _, text in parts}


def _are_possible(values: Mapping[str, str]) -> bool:
    try:
        refuse_with_splits(values)
        fields(values)
        refuse_with_checkpoints(values)
    except UsageError:
        return False
    return True


def refuse_with_checkpoints(values: Mapping[str, str]) -> None:
    """Refuse checkpoints of a training whose state they lack: outer averages, gradients left over, a user's own."""
    if "checkpoint_every" not in values:
        return
    asked = [f"--{name.replace('_', '-')} {values[name]}" for name in ("sync_every", "compress") if name in values]
    if ScaleOptions(values.get("scale", "data")).is_of_user:
        asked.insert(0, f"--scale {values['scale']}")
    if asked:
        raise UsageError(
            f"--checkpoint-every cannot save a training with {' '.join(asked)}",
            hint=f"remove {' '.join(asked)}, or let the script save itself, and remove --checkpoint-every",
        )


def refuse_with_splits(values: Mapping[str, str]) -> None:
    """Refuse options for data parallelism when the ranks split the model."""
    kind = KINDS.get(values.get("scale", ""))
    for option in kind.refuses if kind is not None and kind.splits_model else ():
        _refuse_with_scale(option, values, f"remove --{option}, or use --scale data")


def _refuse_with_scale(option: str, values: Mapping[str, str], hint: str) -> None:
    scale = values.get("scale", "")
    if option.replace("-", "_") in values and scale in KINDS and option in KINDS[scale].refuses:
        why = KINDS[scale].refuses[option]
        raise UsageError(f"--{option} does not go with --scale {scale}: {why}", hint=hint)


def _refuse_together(option: str, values: Mapping[str, str], reasons: Mapping[str, str]) -> None:
    for other, why in reasons.items():
        if other.replace("-", "_") in values:
            raise UsageError(f"--{option} does not go with --{other}: {why}", hint=f"remove --{other} or --{option}")


def _rate(text: str) -> float:
    if not _is_number(text) or not 0 < float(text) <= 10:
        raise UsageError(
            f"--outer-lr {seen(text)}: give a number above 0 and at most 10; 1 without momentum is the average",
            hint=f"--outer-lr {OUTER_LEARNING_RATE}",
        )
    return float(text)


def _momentum(text: str) -> float:
    if not _is_number(text) or not 0 <= float(text) < 1:
        raise UsageError(
            f"--outer-momentum {seen(text)}: give a number from 0 to less than 1",
            hint=f"--outer-momentum {OUTER_MOMENTUM}",
        )
    return float(text)


def _compression(values: Mapping[str, str]) -> dict[str, str]:
    if "compress" not in values:
        return {}
    text = values["compress"]
    match = re.fullmatch(r"bf16|fp16|powersgd(?::([0-9]{1,4})(?::([0-9]{1,9}))?)?", text)
    if not match:
        raise UsageError(
            f"--compress {seen(text)}: the choices are bf16, fp16 and powersgd, powersgd:RANK or powersgd:RANK:STEP",
            hint="echelon run --compress bf16 …",
        )
    _refuse_together("compress", values, _WHOLE_GRADIENTS)
    _refuse_with_scale("compress", values, f"echelon run --scale data --compress {text} …")
    if not text.startswith("powersgd"):
        return {"compress": text}
    rank, step = int(match.group(1) or POWERSGD_RANK), int(match.group(2) or POWERSGD_STEP)
    if rank < 1 or step < 2:
        raise UsageError(
            f"--compress {text}: RANK must be at least 1, and STEP at least 2: earlier gradients are not compressed",
            hint=f"--compress powersgd:{max(rank, 1)}:{max(step, 2)}",
        )
    return {"compress": f"powersgd:{rank}:{step}"}


def _buckets(values: Mapping[str, str]) -> dict[str, float]:
    if "bucket_mb" not in values:
        return {}
    text = values["bucket_mb"]
    if not _is_number(text) or not 0.001 <= float(text) <= 1 << 20:
        raise UsageError(
            f"--bucket-mb {seen(text)}: give the size of a gradient bucket in MB; PyTorch's is 25",
            hint="echelon run --bucket-mb 4 …",
        )
    _refuse_together("bucket-mb", values, _WHOLE_GRADIENTS)
    _refuse_with_scale("bucket-mb", values, f"echelon run --scale data --bucket-mb {text} …")
    if values.get("compress", "").startswith("powersgd"):
        raise UsageError(
            "--bucket-mb does not go with --compress powersgd, which needs all gradients in one bucket",
            hint="remove --bucket-mb",
        )
    return {"bucket_megabytes": float(text)}


def _is_number(text: str) -> bool:
    return bool(re.fullmatch(r"[0-9]{1,12}(\.[0-9]{1,12})?|\.[0-9]{1,12}", text))
