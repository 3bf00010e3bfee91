"""Read a launcher's command line: its own options, the program at its end, and what both mean for `echelon run`."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from echelon.environment import digits
from echelon.errors import UsageError
from echelon.spec import Command


@dataclass(frozen=True, slots=True, kw_only=True)
class Given:
    """An option of a command line."""

    key: str
    """Its name without dashes: the launcher's name while its line is read, `echelon run`'s name in a `Line`."""
    value: str
    """Empty for a flag."""
    text: str
    """The option as typed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MpiStart:
    """A line whose ranks need MPI's own start protocol."""

    kind: str
    """The launcher that starts the ranks, "mpirun"; or the protocol that Slurm was asked for: "pmix", "pmi2" …"""
    words: tuple[str, ...] = ()
    """The launcher and its options, as typed: the program follows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LauncherLine:
    """A launcher's command line, interpreted."""

    launcher: str
    command: Command
    """The command of each rank."""
    options: tuple[Given, ...] = ()
    """Options with the keys and values of `echelon run`, and the text that the user typed."""
    num_ranks: int = 0
    """The number of ranks on all nodes together; 0: not stated."""
    num_ranks_text: str = ""
    environ: tuple[tuple[str, str], ...] = ()
    """Variables that the launcher would have set, apart from rank and place."""
    devices: str = ""
    """The devices that the ranks of each node see, "0,2"; empty: all."""
    hosts: tuple[str, ...] = ()
    """The machines that the line names, except this one."""
    rank_argument: str = ""
    """The prefix of the local rank in an extra first argument of each rank, "--local_rank="; empty: no argument."""
    mpi: MpiStart | None = None
    no_meaning: tuple[tuple[str, str], ...] = ()
    """Options without an effect here, each with the reason."""
    note: str = ""
    """A difference from the launcher's own behaviour, for a message."""


HARMLESS = ("-u",)  # output of ranks is line buffered in any case


def command(launcher: str, rest: Sequence[str], *, example: str) -> Command:
    """Return the command after a launcher of any program; `python train.py` is a script if that Python is our own."""
    if not rest:
        raise UsageError(f"{launcher} needs a program", hint=example)
    words = list(rest)
    if is_our_python(words[0]):
        at = 1
        while at < len(words) and words[at] in HARMLESS:
            at += 1
        if words[at : at + 1] == ["-m"] and at + 1 < len(words):
            return Command(kind="module", target=words[at + 1], arguments=tuple(words[at + 2 :]))
        if at < len(words) and not words[at].startswith("-"):
            return Command(kind="script", target=words[at], arguments=tuple(words[at + 1 :]))
    return Command(kind="program", target=words[0], arguments=tuple(words[1:]))


def is_our_python(word: str) -> bool:
    """Say whether a word starts the Python that runs echelon: then echelon can start the script itself."""
    if not re.fullmatch(r"(?:.*/)?python(?:3(?:\.\d+)?)?", word):
        return False
    path = shutil.which(word)
    return path is not None and os.path.dirname(os.path.abspath(path)) == os.path.dirname(
        os.path.abspath(sys.executable)
    )


def renamed(options: Sequence[Given], keys: dict[str, str]) -> tuple[Given, ...]:
    """Return the options that `echelon run` has too, under its names."""
    return tuple(
        Given(key=keys[option.key], value=option.value, text=option.text) for option in options if option.key in keys
    )


def without_meaning(options: Sequence[Given], reasons: dict[str, str]) -> tuple[tuple[str, str], ...]:
    """Return the options without an effect here, each once, with its reason."""
    by_name = {
        option.text.partition(" ")[0].partition("=")[0]: reasons[option.key]
        for option in options
        if option.key in reasons
    }
    return tuple(by_name.items())


@dataclass(frozen=True, slots=True, kw_only=True)
class Grammar:
    """The options of a launcher, as its help spells them."""

    launcher: str
    flags: frozenset[str]
    values: frozenset[str]
    """Options with one value."""
    wide: Mapping[str, int] = field(default_factory=dict)
    """Options with several values, and the number of values."""
    short: Mapping[str, str] = field(default_factory=dict)
    """Short spellings, each with its long spelling."""
    single_dash: bool = False
    """Whether -host means --host, as for MPI's launchers."""
    abbreviates: bool = True
    """Whether a prefix of a name is accepted, as argparse and getopt do."""

    @property
    def names(self) -> frozenset[str]:
        return self.flags | self.values | self.wide.keys()


@dataclass(frozen=True, slots=True, kw_only=True)
class Read:
    """A command line, taken apart."""

    given: tuple[Given, ...]
    rest: tuple[str, ...]
    """The program and its arguments."""

    def last(self, key: str) -> Given | None:
        return next((each for each in reversed(self.given) if each.key == key), None)

    def value(self, key: str) -> str:
        """Return the last value of an option; empty if it was not given."""
        option = self.last(key)
        return option.value if option is not None else ""

    def has(self, key: str) -> bool:
        return self.last(key) is not None

    def script_or_program(self, launcher: str, *, example: str) -> Command:
        """Return the command after a launcher that starts Python by itself."""
        if not self.rest:
            raise UsageError(f"{launcher} needs a script", hint=example)
        if self.has("module") and self.has("no-python"):
            raise UsageError(f"{launcher}: --module names a module, --no_python any program", hint="remove one of them")
        kind = "module" if self.has("module") else "program" if self.has("no-python") else "script"
        return Command(kind=kind, target=self.rest[0], arguments=self.rest[1:])


def read(words: Sequence[str], grammar: Grammar, *, example: str) -> Read:
    """Read options up to the program; raise UsageError for an option that the launcher does not have."""
    options: list[Given] = []
    position = 0
    while position < len(words) and words[position].startswith("-") and words[position] not in ("-", "--"):
        word = words[position]
        key, inline = _split(word, grammar)
        position += 1
        count = grammar.wide.get(key, 1 if key in grammar.values else 0)
        if inline is not None:
            if not count:
                raise UsageError(f"{grammar.launcher}: --{key} takes no value, but got one: {word}", hint=example)
            options.append(Given(key=key, value=inline, text=word))
            continue
        taken = words[position : position + count]
        if len(taken) < count:
            raise UsageError(f"{grammar.launcher}: {word} needs a value", hint=example)
        options.append(Given(key=key, value="=".join(taken), text=shlex.join([word, *taken])))
        position += count
    return Read(given=tuple(options), rest=tuple(words[position + (words[position : position + 1] == ["--"]) :]))


def _split(word: str, grammar: Grammar) -> tuple[str, str | None]:
    """Return an option's full name, and the value inside the word if there is one."""
    if word in grammar.short:
        return grammar.short[word], None
    if word.startswith("--") or grammar.single_dash:
        name, equals, value = word.lstrip("-").partition("=")
        return _known(word, name.replace("_", "-"), grammar), value if equals else None
    short, rest = word[:2], word[2:].removeprefix("=")
    if rest and short in grammar.short and grammar.short[short] in grammar.values:
        return grammar.short[short], rest
    raise _unknown(word, word.lstrip("-"), grammar)


def _known(word: str, name: str, grammar: Grammar) -> str:
    if name in grammar.names:
        return name
    starts = [known for known in grammar.names if known.startswith(name) and name]
    if grammar.abbreviates and len(starts) == 1:
        return starts[0]
    raise _unknown(word, name, grammar)


def _unknown(word: str, name: str, grammar: Grammar) -> UsageError:
    import difflib  # only an error pays these 5 ms

    near = difflib.get_close_matches(name, sorted(grammar.names), n=2, cutoff=0.6)
    option = word.partition("=")[0]
    lists = f"{grammar.launcher} --help lists them; the program's own come after its name"
    return UsageError(
        f"echelon does not know the option {option} of {grammar.launcher}",
        hint=f"did you mean {' or '.join('--' + each for each in near)}?" if near else lists,
    )


def whole(launcher: str, option: Given, *, least: int = 1) -> int:
    """Return an option's value as a number; raise UsageError for any other value."""
    if digits.whole(option.value, -1) < least:
        raise UsageError(
            f"{launcher} {option.text}: give a whole number of at least {least}", hint=f"--{option.key} {least}"
        )
    return int(option.value)
