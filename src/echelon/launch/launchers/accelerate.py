"""`accelerate launch`: echelon reads its simple options; accelerate itself interprets configurations."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence

from echelon.errors import UsageError
from echelon.launch.launchers.ask_accelerate import Answer
from echelon.launch.launchers.line import Given, Line
from echelon.launch.launchers.program import renamed, script_or_program, without_meaning
from echelon.launch.launchers.words import Grammar, Read, read, whole

Ask = Callable[[Sequence[str]], Answer]

# accelerate 1.15, accelerate/commands/launch.py: these options need no configuration
_SIMPLE_FLAGS = frozenset(
    {"cpu", "multi-gpu", "same-network", "module", "no-python", "quiet", "debug", "dynamo-use-fullgraph",
     "dynamo-use-dynamic", "dynamo-use-regional-compilation", "enable-cpu-affinity"}
)  # fmt: skip
_SIMPLE_VALUES = frozenset(
    {"num-processes", "num-machines", "machine-rank", "main-process-ip", "main-process-port", "mixed-precision",
     "dynamo-backend", "dynamo-mode", "gpu-ids", "num-cpu-threads-per-process", "rdzv-backend", "rdzv-conf", "role",
     "tee", "log-dir", "max-restarts", "monitor-interval", "main-training-function"}
)  # fmt: skip
_OTHER_FLAGS = frozenset(
    {"use-deepspeed", "use-fsdp", "use-parallelism-config", "use-megatron-lm", "use-xpu", "ipex", "tpu", "tpu-cluster",
     "no-tpu-cluster", "tpu-use-sudo", "downcast-bf16"}
)  # fmt: skip
_OTHER_VALUES = frozenset(
    {"config-file", "deepspeed-config-file", "zero-stage", "offload-optimizer-device", "offload-param-device",
     "offload-optimizer-nvme-path", "offload-param-nvme-path", "gradient-accumulation-steps", "gradient-clipping",
     "zero3-init-flag", "zero3-save-16bit-model", "deepspeed-hostfile", "deepspeed-exclusion-filter",
     "deepspeed-inclusion-filter", "deepspeed-multinode-launcher", "deepspeed-moe-layer-cls-names", "fsdp-version",
     "fsdp-offload-params", "fsdp-min-num-params", "fsdp-sharding-strategy", "fsdp-reshard-after-forward",
     "fsdp-auto-wrap-policy", "fsdp-transformer-layer-cls-to-wrap", "fsdp-backward-prefetch", "fsdp-state-dict-type",
     "fsdp-forward-prefetch", "fsdp-use-orig-params", "fsdp-cpu-ram-efficient-loading", "fsdp-sync-module-states",
     "fsdp-activation-checkpointing", "fsdp-activation-checkpointing-offload", "fsdp-ignored-modules",
     "megatron-lm-tp-degree", "megatron-lm-pp-degree", "megatron-lm-num-micro-batches",
     "megatron-lm-sequence-parallelism", "megatron-lm-recompute-activations", "megatron-lm-gradient-clipping",
     "megatron-lm-use-distributed-optimizer", "parallelism-config-dp-replicate-size",
     "parallelism-config-dp-shard-size", "parallelism-config-tp-size", "parallelism-config-cp-size",
     "parallelism-config-cp-backend", "parallelism-config-cp-comm-strategy", "parallelism-config-sp-size",
     "parallelism-config-sp-backend", "mpirun-hostfile", "mpirun-ccl", "vm", "env", "aws-access-key-id",
     "aws-secret-access-key"}
)  # fmt: skip
GRAMMAR = Grammar(
    launcher="accelerate launch",
    flags=_SIMPLE_FLAGS | _OTHER_FLAGS,
    values=_SIMPLE_VALUES | _OTHER_VALUES,
    short={"-m": "module", "-q": "quiet"},
)
EXAMPLE = "echelon run -- accelerate launch --num_processes=4 train.py"
_OWN_LOGS = "every rank has its own log in the run directory"
NO_MEANING = {
    "rdzv-backend": "echelon finds the nodes by itself", "rdzv-conf": "echelon finds the nodes by itself",
    "same-network": "echelon finds the nodes by itself", "role": "all ranks have the same role", "log-dir": _OWN_LOGS,
    "monitor-interval": "echelon notices the end of a rank at once",
    "quiet": "only for a launcher, which echelon replaces",
    "main-training-function": "of TPUs", "enable-cpu-affinity": "--bind binds ranks",
}  # fmt: skip
UNSUPPORTED = {
    "tpu": "TPUs", "tpu-cluster": "TPUs", "vm": "TPUs", "env": "TPUs", "aws-access-key-id": "SageMaker",
    "aws-secret-access-key": "SageMaker",
}  # fmt: skip
_KEYS = {
    "num-machines": "nnodes", "machine-rank": "node_rank", "main-process-ip": "master_addr",
    "main-process-port": "master_port", "max-restarts": "max_restarts", "tee": "tee",
}  # fmt: skip
PRECISIONS = ("no", "fp16", "bf16", "fp8")


def line(name: str, words: Sequence[str], ask: Ask) -> Line:
    """Read the line; ask accelerate if a configuration or a plug-in decides."""
    arguments = read(words, GRAMMAR, example=EXAMPLE)
    for option in arguments.given:
        if option.key in UNSUPPORTED:
            raise UsageError(f"{name} {option.text} is for {UNSUPPORTED[option.key]}", hint="remove it")
    if arguments.has("mpirun-hostfile"):
        raise UsageError(
            f"{name} --mpirun_hostfile would start mpirun, but echelon starts the ranks",
            hint="remove it: in a Slurm allocation echelon knows the nodes",
        )
    command = script_or_program(
        name, arguments.rest, module=arguments.has("module"), no_python=arguments.has("no-python"), example=EXAMPLE
    )
    needs_answer = any(given.key in _OTHER_FLAGS | _OTHER_VALUES for given in arguments.given)
    has_config = os.path.isfile(default_config()) and not arguments.has("cpu")
    if needs_answer or has_config or arguments.value("mixed-precision") == "fp8":
        return _answered(name, arguments, command_line=Line(launcher=name, command=command), answer=ask(words))
    layout = _number_of_ranks(arguments)
    total = arguments.last("num-processes")
    alone = arguments.has("cpu") and total is not None and total.value != "1"
    return Line(
        launcher=name,
        command=command,
        options=layout,
        num_ranks=_total(name, arguments),
        num_ranks_text=total.text if total else "",
        environ=_environ(name, arguments),
        devices="" if arguments.value("gpu-ids") in ("", "all") else arguments.value("gpu-ids"),
        no_meaning=without_meaning(arguments.given, NO_MEANING),
        note="without echelon --cpu would start one process, whatever --num_processes says" if alone else "",
    )


def default_config() -> str:
    """Return the file that accelerate reads by default."""
    cache = os.environ.get("XDG_CACHE_HOME", os.path.join("~", ".cache"))
    home = os.environ.get("HF_HOME", os.path.join(cache, "huggingface"))
    return os.path.join(os.path.expanduser(home), "accelerate", "default_config.yaml")


def _number_of_ranks(arguments: Read) -> tuple[Given, ...]:
    """Return the options of place; a line without a number of machines means one machine."""
    kept = [each for each in arguments.given if not (each.key == "num-machines" and each.value == "1")]
    if arguments.value("num-machines") in ("", "1"):
        kept = [each for each in kept if each.key in ("max-restarts", "tee")]
    return renamed(kept, _KEYS)


def _total(name: str, arguments: Read) -> int:
    total = arguments.last("num-processes")
    return whole(name, total) if total is not None else 0


def _environ(name: str, arguments: Read) -> tuple[tuple[str, str], ...]:
    precision = arguments.value("mixed-precision") or "no"
    if precision not in PRECISIONS:
        raise UsageError(
            f"{name} --mixed_precision {precision}: the choices are {', '.join(PRECISIONS)}",
            hint="--mixed_precision bf16",
        )
    pairs = {
        "ACCELERATE_MIXED_PRECISION": precision,
        "ACCELERATE_DYNAMO_BACKEND": (arguments.value("dynamo-backend") or "no").upper(),
        "ACCELERATE_DYNAMO_MODE": arguments.value("dynamo-mode") or "default",
        "ACCELERATE_DYNAMO_USE_FULLGRAPH": str(arguments.has("dynamo-use-fullgraph")),
        "ACCELERATE_DYNAMO_USE_DYNAMIC": str(arguments.has("dynamo-use-dynamic")),
        "ACCELERATE_DYNAMO_USE_REGIONAL_COMPILATION": str(arguments.has("dynamo-use-regional-compilation")),
    }
    if arguments.has("cpu"):
        pairs["ACCELERATE_USE_CPU"] = "True"
    if arguments.has("debug"):
        pairs["ACCELERATE_DEBUG_MODE"] = "true"
    if arguments.has("num-cpu-threads-per-process"):
        pairs["OMP_NUM_THREADS"] = arguments.value("num-cpu-threads-per-process")
    return tuple(pairs.items())


def _answered(name: str, arguments: Read, *, command_line: Line, answer: Answer) -> Line:
    """Return the line as accelerate interprets it: from its options, its file, and the devices here."""
    source = arguments.value("config-file") or default_config()
    total = arguments.last("num-processes")
    said = total.text if total is not None else f"num_processes of {source}"
    options = [*renamed([each for each in arguments.given if each.key in ("max-restarts", "tee")], _KEYS)]
    if answer.num_machines > 1:
        options.append(Given(key="nnodes", value=str(answer.num_machines), text=f"num_machines of {source}"))
        options += [
            Given(key=key, value=value, text=f"{key} of {source}")
            for key, value in (
                ("node_rank", answer.machine_rank),
                ("master_addr", answer.main_process_ip),
                ("master_port", answer.main_process_port),
            )
            if value
        ]
    environ = dict(answer.environ)
    if arguments.has("num-cpu-threads-per-process"):
        environ["OMP_NUM_THREADS"] = arguments.value("num-cpu-threads-per-process")
    alone = answer.kind == "simple" and answer.num_processes > 1
    return Line(
        launcher=name,
        command=command_line.command,
        options=tuple(options),
        num_ranks=answer.num_processes,
        num_ranks_text=said if answer.num_processes else "",
        environ=tuple(environ.items()),
        devices=answer.gpu_ids,
        no_meaning=without_meaning(arguments.given, NO_MEANING),
        note="without echelon it would start one process: its configuration is not for several processes"
        if alone
        else "",
    )
