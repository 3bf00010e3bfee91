"""Say the worst mistake of a script at a start in one line, and refuse options of echelon behind the script."""

from __future__ import annotations

import os
import re
import shlex
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING

from echelon.cli.options import OPTIONS
from echelon.cli.talk import say
from echelon.environment import regular_files
from echelon.errors import EchelonError, UsageError

if TYPE_CHECKING:
    from echelon.script.imports import Imports
    from echelon.spec import Command


MOST_BYTES = 1 << 16
"""A start does not read larger scripts, because that takes too long; `echelon lint` does."""
SUBMITTED = "job.sh"
"""This file exists in the run directory of a submitted job, whose submission has already reported mistakes."""


def say_worst(command: Command, *, scale: str = "off", run_directory: str = "") -> None:
    """Print the worst finding of `echelon lint` in a script, if there is one; never stop the run."""
    path = _source(command)
    if not path or (run_directory and os.path.exists(os.path.join(run_directory, SUBMITTED))):
        return
    try:
        source = regular_files.read(path, most_bytes=MOST_BYTES)
    except OSError:
        return  # another part of the start decides whether the script can be read
    from echelon.lint.scripts import mistakes

    findings = mistakes(path, source, is_scaled=scale != "off")
    if findings:
        worst, more = findings[0], f", and {len(findings) - 1} more" if len(findings) > 1 else ""
        summary = f"{worst.severity} {worst.code} in {path}:{worst.line}: {worst.message}{more}"
        say(f"lint: {summary}; echelon lint {shlex.quote(path)}")


def _source(command: Command) -> str:
    """Return the path of the file that becomes `__main__`; empty if there is no Python file."""
    if command.kind == "program":
        return ""
    if command.kind == "script":
        return command.target if command.target.endswith(".py") else ""
    from echelon.script.find import resolve

    try:
        script = resolve(command.target, module=True, cwd=os.getcwd(), search_path=sys.path[1:])
    except EchelonError:
        return ""  # the run itself reports this
    return os.path.relpath(script.path) if script.path and script.path.endswith(".py") else ""


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


def refuse_unread(command: Command) -> None:
    """Raise UsageError for an echelon option behind a script that reads no arguments; note one that it may ignore."""
    if command.kind == "program":
        return
    words = list(_ours(command.arguments))
    if not words:
        return
    sources, imports = _sources(command)
    if imports is None or not all(sources):
        return
    text = "\n".join(sources)
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


def _sources(command: Command) -> tuple[list[str], Imports | None]:
    """Return the texts of the script and its own modules; empty if a file cannot be read."""
    from echelon.script import find, imports

    try:
        script = find.resolve(command.target, module=command.kind == "module", cwd=os.getcwd(), search_path=[])
        imported = imports.read_imports(script)
    except (EchelonError, OSError):
        return [], None  # the run itself reports this
    places = [os.path.join(script.folder, *name.partition(":")[0].split(".")) for name in imported.local]
    ends = (".py", "/__init__.py")
    files = [next((place + end for end in ends if os.path.exists(place + end)), "") for place in places]
    return [_text(path) for path in (script.path or "", *files)], imported


def _text(path: str) -> str:
    try:
        return regular_files.read(path).decode("utf-8", "replace") + "\n"
    except OSError:
        return ""
