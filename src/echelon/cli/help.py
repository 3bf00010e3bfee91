"""The help of each command: `--help`, the manual page and shell completion read the same rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib import import_module

from echelon.cli import options as options_of
from echelon.cli.options import Option, Scanned, rows
from echelon.cli.talk import print_help
from echelon.host import terminal


@dataclass(frozen=True, slots=True, kw_only=True)
class Help:
    """The help of one command: usage, purpose, options, an example."""

    command: str
    usage: tuple[str, ...] = ("[options]",)
    """The text after `echelon COMMAND`; one line for each form."""
    about: str
    """Paragraphs, one line each."""
    groups: tuple[tuple[str, tuple[Option, ...]], ...]
    """Titles, each with the options below it."""
    operands: tuple[Option, ...] = field(default=())
    """The operands: words that are not options."""
    after: str = ""
    """The text after the options."""
    example: str
    """The command after `$ `, ready to paste."""

    @property
    def options(self) -> tuple[Option, ...]:
        return tuple(option for _, options in self.groups for option in options)

    @property
    def offered(self) -> tuple[Option, ...]:
        """Return the options that have an effect."""
        return tuple(option for option in self.options if not option.no_meaning)

    @property
    def ignored(self) -> tuple[Option, ...]:
        """Return the options that are accepted and have no effect."""
        return tuple(option for option in self.options if option.no_meaning)

    @property
    def passes_arguments(self) -> bool:
        """Say whether words after the first operand belong to a script or a program."""
        return any(operand.takes in ("script", "program") for operand in self.operands)

    def scan(self, arguments: Sequence[str], options: Sequence[Option] = (), *, command: str = "") -> Scanned:
        """Read options up to the first operand; end after the text if --help is among them."""
        return self._unless_help(options_of.scan(arguments, options or self.options, command=command or self.command))

    def scan_all(self, arguments: Sequence[str], options: Sequence[Option] = (), *, command: str = "") -> Scanned:
        """Read options before, between and after the operands; end after the text if --help is among them."""
        scanned = options_of.scan_all(arguments, options or self.options, command=command or self.command)
        return self._unless_help(scanned)

    def _unless_help(self, scanned: Scanned) -> Scanned:
        if "help" in scanned.values:
            print_help(self.text())
            raise SystemExit(0)
        return scanned

    def text(self) -> str:
        lines = [
            f"{'usage:' if index == 0 else '      '} echelon {self.command} {usage}".rstrip()
            for index, usage in enumerate(self.usage)
        ]
        lines += ["", *_wrapped(self.about)]
        operands = rows([operand for operand in self.operands if operand.help])
        lines += ["", *operands] if operands else []
        for title, options in self.groups:
            lines += ["", f"{title}:", *rows(options)]
        if self.ignored:
            lines += ["", IGNORED, *_wrapped("  " + ", ".join(option.names[-1] for option in self.ignored))]
        lines += ["", *_wrapped(self.after)] if self.after else []
        return "\n".join([*lines, "", "example:", f"  {self.example}", ""])


IGNORED = "accepted so that torchrun's command lines work unchanged, but without effect here:"


def of(command: str) -> Help:
    of_command: Help = import_module(f"echelon.cli.{command}").HELP
    return of_command


def of_all() -> list[Help]:
    from echelon.cli import COMMANDS

    return [of(command) for command in COMMANDS]


def _wrapped(text: str) -> list[str]:
    return terminal.wrapped(text, width=max(terminal.columns() - 1, 40)).split("\n")
