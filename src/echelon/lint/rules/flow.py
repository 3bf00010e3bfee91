"""Rules about the course of a script: background steps, environments, pipes, the data of its programs."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterator
from itertools import pairwise

from echelon.lint.command import SimpleCommand
from echelon.lint.finding import Hit, Rule, hit, line_before
from echelon.lint.job import JobScript
from echelon.lint.starts import CONTAINERS, LAUNCHERS, StartedProgram

WORK = ("srun", "python", "python3", *LAUNCHERS, *CONTAINERS)
HOLDS = frozenset(
    {"wait", "fg", "tail", "sleep", "parallel", "xargs", "bash", "sh", "read", "exec", "ray", "dask", "curl"}
)
"""Commands that may keep the script alive until its background steps have ended."""
PYTHONS = re.compile(r"python|conda|forge|mamba|pytorch|torch|tensorflow|scipy-stack|jax|anaconda|cray-python", re.I)
HOOKS = re.compile(r"conda|mamba|forge|python|pytorch|anaconda|lang|env|tykky|apps", re.I)


def not_waited_for(job: JobScript) -> Iterator[Hit]:
    """Find a script that ends before its background steps."""
    if not job.is_batch:
        return
    commands = job.commands
    started = {id(start.command): start for start in reversed(job.starts) if start.name in WORK}
    for index, command in enumerate(commands):
        start = started.get(id(command))
        if start is None or command.outer is not None or (ends := _ends(commands, index)) < 0:
            continue
        if not any(_holds(each) for each in commands[ends + 1 :] if each.outer is None):
            message = (
                f"{start.name} runs in the background, but the script does not wait for it: Slurm kills it at the end"
            )
            yield hit(start.word, message, "make wait the script's last line")
            return


def _ends(commands: list[SimpleCommand], index: int) -> int:
    """Return the index of the command that puts a command into the background; -1 if none does."""
    command = commands[index]
    if command.ending == "&":
        return index
    if not command.blocks:
        return -1
    open_blocks = {block.number for block in command.blocks}
    for later, follower in enumerate(commands[index + 1 :], index + 1):
        is_outside = not {block.number for block in follower.blocks} >= open_blocks
        if is_outside and follower.words[0].raw in ("done", "}", "fi"):
            return later if follower.ending == "&" else -1
        if is_outside:
            return -1
    return -1


def _holds(command: SimpleCommand) -> bool:
    if command.ending == "&":
        return False
    program = command.program
    return program in (*HOLDS, *WORK) or program.endswith((".sh", ".py")) or program.startswith((".", "/", "$"))


def conda_without_hook(job: JobScript) -> Iterator[Hit]:
    """Find conda activate in a shell without conda's hook."""
    if not job.is_batch or re.search(r"^#!.*(?:\s-\w*[li]\w*|--login)\b", job.lines[0] if job.lines else ""):
        return
    for command in job.commands:
        text = " ".join(word.text for word in command.words)
        if command.program in ("source", ".", "eval") or (command.program in ("module", "ml") and HOOKS.search(text)):
            return
        if command.program in ("use", "conda_init", "spack") or "shell.bash" in text or "conda.sh" in text:
            return
        argv = [word.text for word in command.argv]
        if command.program in ("conda", "mamba", "micromamba") and argv[1:2] == ["activate"] and command.outer is None:
            hook = f'eval "$({argv[0]} shell.bash hook)"'
            message = (
                f"{argv[0]} activate is a shell function, which a batch job's shell does not have: the "
                "environment is not activated"
            )
            yield hit(command.argv[0], message, hook, edits=line_before(job.lines, command, hook))
            return


def conda_with_nounset(job: JobScript) -> Iterator[Hit]:
    """Find set -u before conda activate, whose scripts read unset variables."""
    is_set = None
    for command in job.commands:
        argv = [word.text for word in command.argv]
        if command.program == "set":
            if any(re.match(r"-[a-z]*u", word) for word in argv) or ("nounset" in argv and "-o" in argv):
                is_set = command
            if any(re.match(r"\+[a-z]*u", word) for word in argv) or ("nounset" in argv and "+o" in argv):
                is_set = None
        is_conda = command.program in ("conda", "mamba") and argv[1:2] == ["activate"]
        if is_conda and is_set is not None and command.outer is None:
            message = (
                f"set -u is on (line {is_set.argv[0].line}), but conda runs scripts here that read unset variables"
            )
            text = command.argv[0].raw + " " + " ".join(word.raw for word in command.argv[1:])
            yield hit(command.argv[0], message, f"set +u; {text}; set -u")
            return


def hidden_by_pipe(job: JobScript) -> Iterator[Hit]:
    """Find `| tee`, which hides the exit code of the command before it."""
    if not job.is_batch or _has_pipefail(job):
        return
    for command, follows in pairwise([each for each in job.script.commands if each.outer is None]):
        is_piped = command.ending in ("|", "|&") and follows.program in ("tee", "ts", "cat")
        if not is_piped:
            continue
        start = next((each for each in job.starts if _is_at(each, command) and each.name in WORK), None)
        if start is not None:
            message = (
                f"the exit code of the pipe is that of {follows.program}: if {start.name} fails, Slurm still "
                "reports COMPLETED"
            )
            yield hit(start.word, message, "set -o pipefail", edits=line_before(job.lines, command, "set -o pipefail"))
            return


def _is_at(start: StartedProgram, command: SimpleCommand) -> bool:
    return start.command is command or start.command.source is command


def _has_pipefail(job: JobScript) -> bool:
    return any(
        "pipefail" in word.text or "PIPESTATUS" in word.text
        for command in job.script.commands
        for word in command.words
    )


def module_after_environment(job: JobScript) -> Iterator[Hit]:
    """Find a module load after the activation of an environment: the module's Python comes first in PATH."""
    activated = None
    for command in job.commands:
        argv = [word.text for word in command.argv]
        script = "".join(argv[1:2]) if command.program in ("source", ".") else ""
        is_source = re.search(r"(?:^|bin/)activate$", script) is not None
        is_source = is_source or (command.program in ("conda", "mamba") and argv[1:2] == ["activate"])
        if is_source and command.outer is None:
            activated = command
        if command.program == "deactivate":
            activated = None
        names = argv[2:] if argv[1:2] and argv[1] in ("load", "add") else argv[1:] if command.program == "ml" else []
        python = next((name for name in names if PYTHONS.search(name) and not name.startswith("-")), "")
        if activated is not None and command.program in ("module", "ml") and python and command.outer is None:
            message = (
                f"{python} comes before the environment of line {activated.argv[0].line} on the PATH, so its "
                "python runs"
            )
            repair = f"module load {' '.join(names)}   above line {activated.argv[0].line}"
            yield hit(command.argv[0], message, repair)
            return


def small_files(job: JobScript) -> Iterator[Hit]:
    """Find an argument of a script that names a folder of many small files on a shared disk, and is not staged."""
    for start in job.starts:
        staged = " ".join(word.text for word in start.own) if start.name == "echelon" else ""
        for word in start.words[len(start.own) :]:
            path = word.text.rpartition("=")[2]
            is_staged = re.search(rf"--stage-data[ =](shard:)?{re.escape(path)}/?(?:[ =]|$)", staged)
            message = job.folder_note(path) if "/" in path and "$" not in path and not is_staged else ""
            if message:
                image = os.path.basename(path.rstrip("/")) + ".squashfs"
                yield hit(word, message, f"echelon pack {shlex.quote(path)}; echelon run --stage-data {image} …")


RULES = (
    Rule(code="ECH313", find=not_waited_for),
    Rule(code="ECH314", find=conda_without_hook),
    Rule(code="ECH315", find=conda_with_nounset),
    Rule(code="ECH316", find=hidden_by_pipe),
    Rule(code="ECH317", find=module_after_environment),
    Rule(code="ECH318", find=small_files),
)
