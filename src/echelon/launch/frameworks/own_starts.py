"""Find a script that starts its own ranks: under `echelon run`, each rank would start all of them once more."""

from __future__ import annotations

import ast
import itertools
import os
import shlex
from collections.abc import Iterator

from echelon.environment.rank_names import RANK_NAMES
from echelon.errors import UsageError
from echelon.script.calls import Source

_OF_PYTORCH = (
    "torch.multiprocessing.spawn", "torch.multiprocessing.start_processes", "torch.distributed.run.main",
    "torch.distributed.run.run", "torch.distributed.launch.main", "torch.distributed.launch.launch",
    "torch.distributed.launcher.elastic_launch", "torch.distributed.launcher.api.elastic_launch",
    "torch.distributed.launcher.launch_agent", "torch.distributed.launcher.api.launch_agent",
)  # fmt: skip
_OF_LIBRARIES = (
    "accelerate.notebook_launcher", "accelerate.launchers.notebook_launcher", "accelerate.debug_launcher",
    "accelerate.launchers.debug_launcher", "accelerate.commands.launch.launch_command",
    "accelerate.commands.launch.main", "deepspeed.launcher.runner.main", "ray.train.torch.TorchTrainer",
)  # fmt: skip
_MAY_DO_OTHER_WORK = _OF_PYTORCH[:2]
_PROGRAMS = (
    "subprocess.run", "subprocess.call", "subprocess.check_call", "subprocess.check_output", "subprocess.Popen",
    "os.system", "os.execvp", "os.execv", "os.execlp",
)  # fmt: skip
_LAUNCHERS = (["torchrun"], ["accelerate", "launch"], ["deepspeed"], ["horovodrun"])
_MODULES = ("torch.distributed.run", "torch.distributed.launch", "accelerate.commands.launch")
_NAMES_RANK = RANK_NAMES - {"MASTER_ADDR", "MASTER_PORT"}  # these only say where ranks meet


def refuse(source: Source, num_ranks: int) -> None:
    """Raise UsageError for a script that starts ranks, and never asks which rank it is itself."""
    if num_ranks < 2 or _knows_its_rank(source):
        return
    joins = source.mentions("init_process_group")
    calls = [(call.name + "()", call.line) for call in source.calls((*_OF_PYTORCH, *_OF_LIBRARIES))
             if joins or call.name not in _MAY_DO_OTHER_WORK]  # fmt: skip
    starts = [*calls, *_programs(source)]
    if not starts:
        return
    name, line = min(starts, key=lambda start: start[1])
    shown = os.path.relpath(source.path)
    raise UsageError(
        f"{shown}, line {line}, starts ranks of its own: it calls {name}; each of the {num_ranks} ranks of this run "
        "would start all of them once more",
        hint=f"echelon run -n 1 {shlex.quote(shown)} …   or call the function itself, without a launcher: echelon run "
        "starts the ranks, and sets RANK, LOCAL_RANK and WORLD_SIZE",
    )


def _knows_its_rank(source: Source) -> bool:
    """Say whether a script reads which rank it is, so that it may start ranks only where no launcher has."""
    names = (node.value for node in source.nodes if isinstance(node, ast.Constant) and isinstance(node.value, str))
    return source.mentions("is_torchelastic_launched") or not _NAMES_RANK.isdisjoint(names)


def _programs(source: Source) -> Iterator[tuple[str, int]]:
    """Yield the launchers that a script starts as programs, each with its line."""
    lines = {call.line for call in source.calls(_PROGRAMS)}
    for node in source.nodes:
        words = _words(node) if isinstance(node, ast.Call) and node.lineno in lines else []
        names = [os.path.basename(word) for word in words[:2]]
        if any(names[: len(launcher)] == launcher for launcher in _LAUNCHERS) or _is_module(words):
            yield " ".join(words[:3]), node.lineno  # type: ignore[attr-defined]


def _is_module(words: list[str]) -> bool:
    return any(first == "-m" and second in _MODULES for first, second in itertools.pairwise(words[:4]))


def _words(node: ast.Call) -> list[str]:
    """Return the words of a command line, as far as they are written out; "…" stands for the others."""
    arguments = [*node.args[:1], *(keyword.value for keyword in node.keywords if keyword.arg == "args")]
    if not arguments:
        return []
    line = arguments[0]
    if isinstance(line, (ast.List, ast.Tuple)):
        return [_word(entry) for entry in line.elts]
    parts = line.values if isinstance(line, ast.JoinedStr) else [line]
    return "".join(map(_word, parts)).split()


def _word(node: ast.expr) -> str:
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else "…"
