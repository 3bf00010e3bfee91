"""Ask accelerate what a command line and a configuration mean; a separate process, because it imports torch."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass

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
        found = prepare(args)
        environ = found[1] if isinstance(found, tuple) else found
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
class Answer:
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


def ask(words: Sequence[str], host: Host | None = None) -> Answer:
    """Return accelerate's answer; raise UsageError with its own words where it refuses the line."""
    done = (host or Host()).ask([sys.executable, "-c", PROGRAM, *words], timeout_seconds=SECONDS)
    try:
        facts = json.loads(done.stdout)
    except ValueError:
        raise _no_answer(done.stderr) from None
    if "error" in facts:
        raise UsageError(f"accelerate refuses the line: {facts['error']}", hint="accelerate config makes a new file")
    port = facts["main_process_port"]
    return Answer(
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
