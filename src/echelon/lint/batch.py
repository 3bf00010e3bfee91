"""Parse the options in a batch script's own lines, each with its place."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from functools import cache

from echelon.lint.pages import words

WORD = re.compile(
    r"""(?:\{\{.*?\}\}|<[A-Za-z][^<>]*>|\[(?:your|my|the)\b[^\]]*\]|'[^']*'|"[^"]*"|[^\s'"])+""", re.IGNORECASE
)
"""Match text between spaces; quotes hold spaces together, and so do the brackets of a template or a placeholder."""
NO_COMMANDS = ("#", "{%", "{#")
"""The beginnings of comments, and of template lines that vanish when the template is filled in."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchOption:
    """An option for Slurm."""

    name: str
    """The long name without dashes; an unknown option as written."""
    value: str
    line: int
    column: int
    written: str
    """As written: "-N 2", "--nodes=2"."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Late:
    """A line that looks like an option line, but that Slurm does not read."""

    line: int
    why: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchHeader:
    """All options that a script gives to Slurm."""

    options: tuple[BatchOption, ...]
    late: tuple[Late, ...]
    """Option lines that Slurm does not read."""
    is_heterogeneous: bool = False
    """Whether the job is heterogeneous; the options are those of its first component."""

    @property
    def last(self) -> dict[str, BatchOption]:
        """Return the last option of a name, which is the valid one."""
        return {option.name: option for option in self.options}


@cache
def names_of_steps() -> frozenset[str]:
    """Return the long names of options that only srun has."""
    steps = words()["slurm"]["steps"]
    return frozenset(name for name in (*steps["value"], *steps["flag"]) if len(name) > 1)


def names() -> frozenset[str]:
    table = words()["slurm"]["options"]
    return frozenset([*table["value"], *table["flag"], *table["maybe"], *table["aliases"]])


def read(lines: list[str]) -> BatchHeader:
    """Parse the lines before the first command; Slurm ignores later ones."""
    directive = words()["slurm"]["directive"]
    options: list[BatchOption] = []
    late: list[Late] = []
    first_command = 0
    is_heterogeneous = False
    for number, line in enumerate(lines, 1):
        text = line.strip()
        if line.startswith(directive):
            if first_command:
                why = f"comes after line {first_command}, the first command: Slurm does not read it"
                late.append(Late(line=number, why=why, text=text))
            elif re.fullmatch(rf"{directive}\s+(?:het|pack)job\s*", line):
                is_heterogeneous = True
            elif not is_heterogeneous:
                options += _options(line, number, len(directive))
        elif re.match(rf"#\s{{0,2}}{directive[1:]}\s+-|\s+{directive}\s+-|(?i:{directive})\s+-", line):
            late.append(Late(line=number, why=f"does not begin with {directive}", text=text))
        elif text and not text.startswith(NO_COMMANDS) and not first_command:
            first_command = number
    return BatchHeader(options=tuple(options), late=tuple(late), is_heterogeneous=is_heterogeneous)


def _options(line: str, number: int, start: int) -> list[BatchOption]:
    spans = [(found.start(), found.group()) for found in WORD.finditer(line[start:])]
    options: list[BatchOption] = []
    takes = set(words()["slurm"]["options"]["value"])
    index = 0
    while index < len(spans):
        at, word = spans[index]
        index += 1
        if word.startswith("#"):
            break
        name, value = _split(word)
        written = word
        is_alone = not value and "=" not in word
        if is_alone and name in takes and index < len(spans) and not spans[index][1].startswith(("-", "#")):
            value, written = spans[index][1], f"{word} {spans[index][1]}"
            index += 1
        column = start + at + 1
        options.append(BatchOption(name=name, value=_plain(value), line=number, column=column, written=written))
    return options


def _split(word: str) -> tuple[str, str]:
    table = words()["slurm"]
    if word.startswith("--"):
        name, _, value = word[2:].partition("=")
        return str(table["options"]["aliases"].get(name, _unabridged(name))), value
    if word.startswith("-") and word[1:2] in table["short"] and (len(word) == 2 or not word[2].isalpha()):
        return str(table["short"][word[1]]), word[2:].removeprefix("=")
    if word.startswith("-") and word[1:2] in "pAJoeqC" and "-" not in word[1:] and word[2:]:
        return str(table["short"][word[1]]), word[2:]  # -pgpu
    return word, ""


def _unabridged(name: str) -> str:
    """Return the option that a name abbreviates; Slurm accepts an unambiguous prefix."""
    longer = [each for each in names() if name and each.startswith(name)]
    return longer[0] if len(longer) == 1 else name


def _plain(value: str) -> str:
    try:
        return " ".join(shlex.split(value))
    except ValueError:
        return value
