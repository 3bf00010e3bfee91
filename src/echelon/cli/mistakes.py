"""Say the worst mistake of a script at a start in one line, and refuse options of echelon behind the script."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterator
from typing import TYPE_CHECKING

from echelon.cli.options import OPTIONS
from echelon.cli.talk import say
from echelon.errors import EchelonError, UsageError

if TYPE_CHECKING:
    from echelon.script.reading import ScriptReading


MOST_BYTES = 1 << 16  # a start does not read larger scripts, because that takes too long; `echelon lint` does
SUBMITTED = "job.sh"
"""This file exists in the run directory of a submitted job, whose submission has already reported mistakes."""


def say_worst(reading: ScriptReading | None, *, scale: str = "off", run_directory: str = "") -> None:
    """Print the worst finding of `echelon lint` in a script, if there is one; never stop the run."""
    if reading is None or (run_directory and os.path.exists(os.path.join(run_directory, SUBMITTED))):
        return
    try:
        script = reading.script
    except EchelonError:
        return  # the run itself reports this
    path = reading.command.target if reading.command.kind == "script" else os.path.relpath(script.path or os.curdir)
    if not path.endswith(".py") or script.content is None or len(script.content) > MOST_BYTES or script.tree is None:
        return
    from echelon.lint.scripts import mistakes

    findings = mistakes(path, script.content, script.tree, is_scaled=scale != "off")
    if findings:
        worst, more = findings[0], f", and {len(findings) - 1} more" if len(findings) > 1 else ""
        summary = f"{worst.severity} {worst.code} in {path}:{worst.line}: {worst.message}{more}"
        say(f"lint: {summary}; echelon lint {shlex.quote(path)}")


NAMES = {name: option for option in OPTIONS for name in option.names if name not in ("-h", "--help")}
OF_RANKS = ("nproc_per_node", "nnodes")
# names that may read a command line: a script without any of them reads no arguments
READS = re.compile(
    r"argv|[Aa]rg(?:ument|parse|s\b)|getopt|optparse|parse|CLI|_cli\b|Fire|(?<![.\w])(?:exec|eval)\(|runpy|importlib"
    r"|__import__"
)
# importing these packages reads no command line; with any other package, echelon cannot be sure
QUIET = frozenset(
    {"torch", "torchvision", "torchaudio", "torchmetrics", "numpy", "scipy", "pandas", "matplotlib", "PIL", "sklearn",
     "tqdm", "einops", "timm", "safetensors", "transformers", "datasets", "tokenizers", "accelerate", "h5py", "cv2",
     "yaml", "wandb", "tensorboard", "echelon"}
)  # fmt: skip


def refuse_unread(reading: ScriptReading | None) -> None:
    """Raise UsageError for an echelon option behind a script that reads no arguments; note one that it may ignore."""
    words = list(_ours(reading.command.arguments)) if reading is not None else []
    if reading is None or not words:
        return
    try:
        command, imports = reading.command, reading.imports
    except EchelonError:
        return  # the run itself reports this
    if len(imports.files) <= len(imports.local):
        return  # a module that cannot be read may read arguments
    text = "\n".join(content.decode("utf-8", "replace") for content in imports.files.values())
    script = f"-m {command.target}" if command.kind == "module" else shlex.quote(command.target)
    options = " ".join(shlex.join(word) for word in words)
    before = f"echelon run {options} {script}"
    if not READS.search(text) and set(imports.packages) <= QUIET:
        is_single = len(words) == 1
        raise UsageError(
            f"{options} come{'s' if is_single else ''} after {command.target}, which reads no arguments", hint=before
        )
    unknown = [word for word in words if NAMES[_name(word[0])].key in OF_RANKS and _name(word[0]) not in text]
    if unknown and "parse_known_args" in text:
        overlooked = f"{shlex.join(unknown[0])} comes after {command.target}, so the script gets it"
        say(f"note: {overlooked}; to give it to echelon: {before} …")


def _ours(arguments: tuple[str, ...]) -> Iterator[list[str]]:
    """Return the arguments that are spelled like options of echelon, each with its value."""
    for place, word in enumerate(arguments):
        option = NAMES.get(_name(word))
        if option is not None:
            has_value = bool(option.value) and "=" not in word
            yield [word, *arguments[place + 1 : place + 2]] if has_value else [word]


def _name(word: str) -> str:
    name = word.partition("=")[0]
    return name.replace("_", "-") if name.startswith("--") else name
