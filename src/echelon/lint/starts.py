"""Find the programs that a command starts: srun, inside of it a container, inside of that a launcher, and so on."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from itertools import pairwise

from echelon.lint.command import SHELLS, SimpleCommand, Word
from echelon.lint.executed_commands import INERT
from echelon.lint.pages import words

PROGRAMS = frozenset(
    {
        "srun", "torchrun", "accelerate", "deepspeed", "mpirun", "mpiexec", "horovodrun", "singularity", "apptainer",
        "python", "python3", "rocprof", "rocprofv2", "rocprofv3", "nsys", "echelon",
    }
)  # fmt: skip
MODULES = {
    "torch.distributed.run": "torchrun",
    "torch.distributed.launch": "torchrun",
    "accelerate.commands.launch": "accelerate",
    "deepspeed.launcher.runner": "deepspeed",
    "echelon": "echelon",
}
LAUNCHERS = ("torchrun", "accelerate", "deepspeed", "mpirun", "mpiexec", "horovodrun")
CONTAINERS = ("singularity", "apptainer")
RUNNERS = frozenset({"conda", "mamba", "micromamba", "uv", "poetry", "pixi", "pipenv", "hatch", "rye", "pdm"})
"""Programs that start another program only with `run`."""
ALIASES = {"tasks-per-node": "ntasks-per-node"}
FOUND = re.compile(r"(?:\$\(|`)\s*(?:which|command -v|type -[pP]|readlink -f)\s+([^\s`)]+)\s*[)`]")
"""Match a program that the shell looks for: $(which torchrun)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StartedProgram:
    """A program that a command starts."""

    name: str
    """Its name; "torchrun" also stands for python -m torch.distributed.run."""
    command: SimpleCommand
    word: Word
    words: tuple[Word, ...]
    """Its own arguments, up to the next program."""
    outer: tuple[StartedProgram, ...] = field(repr=False)
    """The programs that start it, outermost first."""

    @property
    def step(self) -> StartedProgram | None:
        """The srun around it, or itself."""
        return next((start for start in (*reversed(self.outer), self) if start.name == "srun"), None)

    @property
    def container(self) -> StartedProgram | None:
        return next((start for start in self.outer if start.name in CONTAINERS), None)

    @property
    def is_brief(self) -> bool:
        """Whether it only prints or prepares something: python -c '…', python --version, python -m pip."""
        first = [word.text for word in self.words[:2]]
        return first[:1] in (["-c"], ["-V"], ["--version"]) or first in (["-m", "pip"], ["-m", "venv"])

    @property
    def script(self) -> Word | None:
        """The first argument that is a Python file."""
        return next((word for word in self.words if word.text.endswith(".py")), None)

    @property
    def own(self) -> tuple[Word, ...]:
        """The arguments before the script or the program that it starts."""
        if self.name == "srun":
            return self.words[: _options_of_step(self.words)]
        ends = (i for i, word in enumerate(self.words) if word.text.endswith(".py") or word.text in ("-m", "--module"))
        return self.words[: next(ends, len(self.words))]

    @property
    def has_unknown(self) -> bool:
        """Whether a variable of unknown value may hold some of its options."""
        own = self.words[: len(self.own) + 1] if self.name == "srun" else self.own
        before = ("", *(word.text for word in own))
        return any(
            _may_be_several(word) and not (last.startswith("-") and "=" not in last)
            for last, word in zip(before, own, strict=False)
        )

    def option(self, *names: str) -> tuple[Word, str] | None:
        """Return an option and its value, --name=value or --name value; underscores count as dashes."""
        known = self._option(names)
        return (known[0], known[2]) if known else None

    def live(self, *names: str) -> str:
        """Return an option's value, with spaces for all that the shell of this command does not expand."""
        known = self._option(names)
        return known[1].live[len(known[1].text) - len(known[2]) :] if known and known[2] else ""

    def _option(self, names: tuple[str, ...]) -> tuple[Word, Word, str] | None:
        own = self.own
        for index, word in enumerate(own):
            name, equals, value = word.text.partition("=")
            plain = name.lstrip("-").replace("_", "-")
            plain = ALIASES.get(plain, plain)
            if not name.startswith("-"):
                continue
            if plain in names:
                follows = own[index + 1] if not equals and index + 1 < len(own) else word
                is_missing = not equals and (follows is word or follows.text.startswith("--"))
                return word, follows, value if equals else "" if is_missing else follows.text
            short = word.text[1:2]
            if not word.text.startswith("--") and short in names and word.text[2:]:
                return word, word, word.text[2:].removeprefix("=")
        return None


def _may_be_several(word: Word) -> bool:
    """Say whether a word of unknown value may be several words: $OPTIONS, "${OPTIONS[@]}"."""
    return word.text.startswith(("$", "`")) and (word.raw[:1] != '"' or "@" in word.text)


def starts(command: SimpleCommand) -> list[StartedProgram]:
    """Return the programs of a command, outermost first."""
    outer = starts(command.outer) if command.outer else []
    argv = command.argv
    programs: list[StartedProgram] = []
    for number, (at, first, name) in enumerate(marks := _marks(argv)):
        end = marks[number + 1][0] if number + 1 < len(marks) else len(argv)
        before = (*outer, *programs)
        programs.append(StartedProgram(name=name, command=command, word=argv[at], words=argv[first:end], outer=before))
    return programs


def _marks(argv: tuple[Word, ...]) -> list[tuple[int, int, str]]:
    """Return the index of each program, the index of its first argument, and its name."""
    marks: list[tuple[int, int, str]] = []
    index = 0
    if argv and (is_inert(argv) or (len(argv) > 1 and argv[1].raw in ("=", "+="))):
        return marks
    while index < len(argv):
        name = _name(argv[index])
        if name in SHELLS or (marks and marks[-1][2] == "echelon"):
            break
        if name in PROGRAMS or re.fullmatch(r"python3?\.\d+", name):
            first, name = _module(argv, index, "python" if name.startswith("python3.") else name)
            marks.append((index, first, name))
            if name in ("python", "python3", *LAUNCHERS) and name not in ("mpirun", "mpiexec"):
                break  # the user's own arguments follow
            index = first + (_options_of_step(argv[first:]) if name == "srun" else 0)
            if name == "srun" and argv[index:] and is_inert(argv[index:]):
                break
            continue
        if name.endswith(".py") and (index == 0 or _is_run(argv[:index], marks)):
            marks.append((index, index, "python"))
            break
        index += 1
    return marks


def _name(word: Word) -> str:
    found = FOUND.fullmatch(word.text)
    return (found[1] if found else word.text).rpartition("/")[2]


def _is_run(before: tuple[Word, ...], marks: list[tuple[int, int, str]]) -> bool:
    """Say whether a Python file is itself the program: after `uv run`, or after srun's options."""
    if any(one.text == "uv" and two.text == "run" for one, two in pairwise(before)):
        return True
    return (
        bool(marks)
        and marks[-1][2] == "srun"
        and marks[-1][1] + _options_of_step(before[marks[-1][1] :]) == len(before)
    )


def is_inert(argv: tuple[Word, ...]) -> bool:
    """Say whether a program only prints or installs its arguments: echo srun, conda install python."""
    name = argv[0].text.rpartition("/")[2]
    following = [word.text for word in argv[1:6]]
    if name in RUNNERS:
        return "run" not in following
    if name == "command":
        return following[:1] in (["-v"], ["-V"])
    return name in INERT


def _options_of_step(argv: tuple[Word, ...]) -> int:
    """Return the number of words that are srun's own options and values; the started program follows."""
    table = words()["slurm"]
    takes = {*table["options"]["value"], *table["steps"]["value"]}
    index = 0
    while index < len(argv) and argv[index].text.startswith("-"):
        word = argv[index].text
        follows = argv[index + 1].text if index + 1 < len(argv) else ""
        if word.startswith("--"):
            name = ALIASES.get(word[2:], word[2:])
            is_unknown = name not in table["options"]["flag"] and name not in table["steps"]["flag"]
            behind = argv[index + 2].text if index + 2 < len(argv) else ""
            is_value = name in takes or (is_unknown and not follows.startswith("-") and behind.startswith("-"))
            index += 1 + ("=" not in word and is_value)
        else:
            long = table["short"].get(word[1:2], word[1:2])
            index += 1 + (len(word) == 2 and long in takes)
    return min(index, len(argv))


def _module(argv: tuple[Word, ...], index: int, name: str) -> tuple[int, str]:
    """Return the index of the first argument of `python -m …` or `accelerate launch`, and the program's name."""
    if name.startswith("python"):
        for at in range(index + 1, min(index + 5, len(argv) - 1)):
            if argv[at].text == "-m":
                module = argv[at + 1].text
                return (at + 2, MODULES[module]) if module in MODULES else (index + 1, "python")
            if not argv[at].text.startswith("-"):
                launcher = _name(argv[at])  # python $(which torchrun) runs the launcher's own file
                return _module(argv, at, launcher) if launcher in LAUNCHERS else (index + 1, "python")
        return index + 1, "python"
    if name == "accelerate" and index + 1 < len(argv) and argv[index + 1].text == "launch":
        return index + 2, name
    return index + 1, name
