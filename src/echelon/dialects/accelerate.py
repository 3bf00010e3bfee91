"""`accelerate launch`: echelon reads its simple options; accelerate itself interprets configurations."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from echelon.dialects.line import Given, Grammar, LauncherLine, Read, read, renamed, whole, without_meaning
from echelon.errors import UsageError
from echelon.host import Host

SECONDS = 120.0  # importing torch from a cold shared disk can take a minute

# Accelerate decides which of its launchers to call; a recorder of the arguments replaces these three.
PROGRAM = """
import json, os, sys
out = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)
from accelerate.commands import launch
from accelerate.utils.launch import prepare_deepspeed_cmd_env, prepare_multi_gpu_env, prepare_simple_launcher_cmd_env

def tell(kind, prepare):
    def launcher(args):
        names = ("num_processes", "num_machines", "machine_rank", "main_process_ip", "main_process_port", "gpu_ids")
        facts = {name: getattr(args, name, None) for name in names}
        args.main_process_port = 0  # or it would look whether its port is free
        before = dict(os.environ)
        prepared = prepare(args)
        environ = prepared[1] if isinstance(prepared, tuple) else prepared
        facts["environ"] = {key: value for key, value in environ.items() if before.get(key) != value}
        json.dump({"kind": kind, **facts}, out)
    return launcher

launch.simple_launcher = tell("simple", prepare_simple_launcher_cmd_env)
launch.multi_gpu_launcher = tell("multi", prepare_multi_gpu_env)
launch.deepspeed_launcher = tell("deepspeed", prepare_deepspeed_cmd_env)
try:
    launch.launch_command(launch.launch_command_parser().parse_args(sys.argv[1:]))
except Exception as error:
    json.dump({"error": str(error) or type(error).__name__}, out)
"""
# Echelon decides where ranks meet, how many threads they have, and where Python looks.
OURS = ("MASTER_ADDR", "MASTER_PORT", "OMP_NUM_THREADS", "KMP_AFFINITY", "KMP_BLOCKTIME", "PYTHONPATH",
        "CUDA_VISIBLE_DEVICES")  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Interpretation:
    """Accelerate's interpretation of a command line."""

    kind: str
    """"simple" (one process), "multi" or "deepspeed"."""
    num_processes: int
    """0: not stated."""
    num_machines: int
    machine_rank: str
    main_process_ip: str
    main_process_port: str
    gpu_ids: str
    """Empty: all devices."""
    environ: tuple[tuple[str, str], ...]


def ask(words: Sequence[str], host: Host | None = None) -> Interpretation:
    """Return accelerate's answer; raise UsageError with its own words where it refuses the line."""
    done = (host or Host()).ask([sys.executable, "-c", PROGRAM, *words], timeout_seconds=SECONDS)
    try:
        facts = json.loads(done.stdout)
    except ValueError:
        raise _no_answer(done.stderr) from None
    if "error" in facts:
        raise UsageError(f"accelerate refuses the line: {facts['error']}", hint="accelerate config makes a new file")
    port = facts["main_process_port"]
    return Interpretation(
        kind=facts["kind"],
        num_processes=int(facts["num_processes"] or 0),
        num_machines=int(facts["num_machines"] or 1),
        machine_rank=str(facts["machine_rank"] or 0),
        main_process_ip=facts["main_process_ip"] or "",
        main_process_port=str(port) if port else "",
        gpu_ids="" if facts["gpu_ids"] in (None, "all") else str(facts["gpu_ids"]),
        environ=tuple((key, value) for key, value in facts["environ"].items() if key not in OURS),
    )


def _no_answer(said: str) -> UsageError:
    lines = said.strip().splitlines() or ["it said nothing"]
    if "No module named 'accelerate'" in said:
        return UsageError(
            f"accelerate is not installed for {sys.executable}, and only accelerate can read its configuration",
            hint="pip install 'echelon[accelerate]'",
        )
    return UsageError(f"accelerate does not understand the line: {lines[-1]}", hint="accelerate launch --help")


Ask = Callable[[Sequence[str]], Interpretation]

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


def line(name: str, words: Sequence[str], ask: Ask) -> LauncherLine:
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
    command = arguments.script_or_program(name, example=EXAMPLE)
    needs_answer = any(given.key in _OTHER_FLAGS | _OTHER_VALUES for given in arguments.given)
    has_config = os.path.isfile(default_config()) and not arguments.has("cpu")
    if needs_answer or has_config or arguments.value("mixed-precision") == "fp8":
        return _answered(name, arguments, command_line=LauncherLine(launcher=name, command=command), answer=ask(words))
    layout = _number_of_ranks(arguments)
    total = arguments.last("num-processes")
    alone = arguments.has("cpu") and total is not None and total.value != "1"
    return LauncherLine(
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


def _answered(name: str, arguments: Read, *, command_line: LauncherLine, answer: Interpretation) -> LauncherLine:
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
    return LauncherLine(
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
