"""Split a launcher's command line into its own options and the program; the program's words are not interpreted."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from echelon.environment import digits
from echelon.errors import UsageError
from echelon.launch.launchers.line import Given


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
        """Return the last occurrence of an option."""
        return next((each for each in reversed(self.given) if each.key == key), None)

    def value(self, key: str) -> str:
        """Return the last value of an option; empty if it was not given."""
        option = self.last(key)
        return option.value if option is not None else ""

    def has(self, key: str) -> bool:
        return self.last(key) is not None


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
    rest = tuple(words[position + (words[position : position + 1] == ["--"]) :])
    return Read(given=tuple(options), rest=rest)


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
