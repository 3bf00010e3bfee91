"""Find a script that starts ranks itself, and a program whose whole training each rank would repeat."""

from __future__ import annotations

import ast
import itertools
import os
import re
import shlex
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence

from echelon.environment import regular_files
from echelon.environment.variables import RANK_NAMES
from echelon.errors import UsageError
from echelon.script.reading import ScriptReading, Source
from echelon.spec import Command

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


def refuse_own_starts(source: Source, num_ranks: int) -> None:
    """Raise UsageError for a script that starts ranks, and never asks which rank it is itself."""
    if num_ranks < 2 or _knows_its_rank(source):
        return
    joins = source.mentions("init_process_group")
    calls = [(call.name + "()", call.line) for call in source.calls((*_OF_PYTORCH, *_OF_LIBRARIES))
             if joins or call.name not in _MAY_DO_OTHER_WORK]  # fmt: skip
    starts = [*calls, *_programs(source), *_processes(source)]
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
    values = _values(source) if lines else {}
    for node in source.nodes:
        words = _words(node, values) if isinstance(node, ast.Call) and node.lineno in lines else []
        names = [os.path.basename(word) for word in words[:2]]
        if any(names[: len(launcher)] == launcher for launcher in _LAUNCHERS) or _is_module(words):
            yield " ".join(words[:3]), node.lineno  # type: ignore[attr-defined]


def _is_module(words: list[str]) -> bool:
    return any(first == "-m" and second in _MODULES for first, second in itertools.pairwise(words[:4]))


def _processes(source: Source) -> Iterator[tuple[str, int]]:
    """Yield the processes that a script starts to be a rank: their function joins a group with a number of its own."""
    if not source.mentions("Process"):
        return
    functions = {node.name: node for node in source.nodes if isinstance(node, ast.FunctionDef)}
    for node in source.nodes:
        if not isinstance(node, ast.Call) or _last_name(node.func) != "Process":
            continue
        targets = [_last_name(keyword.value) for keyword in node.keywords if keyword.arg == "target"]
        bodies = [functions[name] for name in targets if name in functions]
        calls = [inner for body in bodies for inner in ast.walk(body) if isinstance(inner, ast.Call)]
        joins = [call for call in calls if _last_name(call.func) == "init_process_group"]
        if any(keyword.arg == "rank" for call in joins for keyword in call.keywords):
            yield f"Process(target={targets[0]})", node.lineno


def _last_name(node: ast.expr) -> str:
    return str(getattr(node, "id", getattr(node, "attr", "")))


def _values(source: Source) -> dict[str, ast.expr]:
    """Return what the names stand for that are assigned once."""
    pairs = [(target.id, node.value) for node in source.nodes if isinstance(node, ast.Assign)
             for target in node.targets if isinstance(target, ast.Name)]  # fmt: skip
    counts = Counter(name for name, _ in pairs)
    return {name: value for name, value in pairs if counts[name] == 1}


def _words(node: ast.Call, values: Mapping[str, ast.expr]) -> list[str]:
    """Return the words of a command line, as far as they are written out; "…" stands for the others."""
    arguments = [*node.args[:1], *(keyword.value for keyword in node.keywords if keyword.arg == "args")]
    if not arguments:
        return []
    line = _named(arguments[0], values)
    if isinstance(line, ast.Call) and isinstance(line.func, ast.Attribute) and line.func.attr == "split":
        line = _named(line.args[0] if line.args else line.func.value, values)  # of shlex, or of the text
    if isinstance(line, (ast.List, ast.Tuple)):
        return [_word(entry) for entry in line.elts]
    return "".join(map(_word, line.values if isinstance(line, ast.JoinedStr) else [line])).split()


def _named(node: ast.expr, values: Mapping[str, ast.expr]) -> ast.expr:
    return values.get(node.id, node) if isinstance(node, ast.Name) else node


def _word(node: ast.expr) -> str:
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else "…"


_PYTHON = re.compile(r"(?:.*/)?python(?:\d(?:\.\d+)?)?")
_SHELLS = ("sh", "bash", "dash", "ksh", "zsh")
_WITH_VALUE = ("-X", "-W", "--check-hash-based-pycs")
MOST_BYTES = 1 << 20  # the most bytes of a shell script that are read


def refuse_repeated_training(scripts: Iterable[ScriptReading], num_nodes: int, ranks_per_node: int) -> None:
    """Raise UsageError if the ranks of a program, which starts these scripts, would repeat one training."""
    num_ranks = num_nodes * ranks_per_node
    if num_ranks == 1:
        return
    subject, option = (f"each of the {num_ranks} ranks", f"-n {ranks_per_node} ") if num_ranks else ("each rank", "")
    from echelon.script import distributes

    for reading in scripts:
        python = reading.command
        if distributes.trains(reading.imports) and not distributes.how(reading.imports):
            words = [*(["-m"] if python.kind == "module" else []), python.target, *python.arguments]
            raise UsageError(
                f"{subject} would train all of {python.target}, and write the same files: "
                "echelon starts a program after -- unchanged, and the script does not distribute its work",
                hint=f"echelon run {option}{shlex.join(words)}   or, to start copies: echelon run --scale off …",
            )


def python_scripts(command: Command, cwd: str) -> list[ScriptReading]:
    """Return the Python scripts that a program starts, as far as its command line shows."""
    readings = [ScriptReading(python, cwd=cwd) for python in _pythons(command, cwd)]
    return [reading for reading in readings if _is_there(reading)]


def _is_there(reading: ScriptReading) -> bool:
    try:
        return bool(reading.script)
    except UsageError:
        return False  # a name that the shell expands, or a file inside the image


def _pythons(command: Command, cwd: str) -> list[Command]:
    """Return the Python scripts and modules that a program starts, as far as its command line shows."""
    words = [command.target, *command.arguments]
    first = os.path.basename(words[0])
    if first.endswith(".py"):
        return [Command(kind="script", target=words[0], arguments=tuple(words[1:]))]
    script = words[1] if first in _SHELLS and len(words) > 1 else words[0] if first.endswith(".sh") else ""
    if not script:
        return _after_python(words)
    return [found for line in _lines(os.path.join(cwd, script)) for found in _after_python(line)]


def _lines(path: str) -> list[list[str]]:
    try:
        text = regular_files.read(path, most_bytes=MOST_BYTES).decode("utf-8", "replace")
    except OSError:
        return []
    split_lines = []
    for line in text.replace("\\\n", " ").splitlines():
        try:
            split_lines.append(shlex.split(line, comments=True))
        except ValueError:
            continue  # a quotation over several lines
    return split_lines


def _after_python(words: Sequence[str]) -> list[Command]:
    """Return the words after the first Python; the words before it are a wrapper: env, numactl, time."""
    at = next((place for place, word in enumerate(words) if _PYTHON.fullmatch(word)), len(words)) + 1
    while at < len(words) and words[at].startswith("-"):
        if words[at] == "-m" and at + 1 < len(words):
            return [Command(kind="module", target=words[at + 1], arguments=tuple(words[at + 2 :]))]
        if words[at] == "-c":
            return []
        at += 2 if words[at] in _WITH_VALUE else 1
    return [Command(kind="script", target=words[at], arguments=tuple(words[at + 1 :]))] if at < len(words) else []
