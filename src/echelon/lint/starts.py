"""Which programs a command starts: srun, inside of it a container, inside of that a launcher, and so on."""

from __future__ import annotations

from dataclasses import dataclass, field

from echelon.lint.shell import SHELLS, Command, Word

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """One program that a command starts."""

    name: str
    """torchrun also for python -m torch.distributed.run."""
    command: Command
    word: Word
    words: tuple[Word, ...]
    """Its own arguments, up to the next program."""
    outer: tuple[Start, ...] = field(repr=False)
    """What it is started by, the outermost first."""

    @property
    def step(self) -> Start | None:
        """The srun around it, or itself."""
        return next((start for start in (*reversed(self.outer), self) if start.name == "srun"), None)

    @property
    def container(self) -> Start | None:
        """The container around it."""
        return next((start for start in self.outer if start.name in CONTAINERS), None)

    @property
    def script(self) -> Word | None:
        """The first argument that is a Python file."""
        return next((word for word in self.words if word.text.endswith(".py")), None)

    @property
    def own(self) -> tuple[Word, ...]:
        """The arguments before the script that it starts."""
        end = next((i for i, word in enumerate(self.words) if word.text.endswith(".py")), len(self.words))
        return self.words[:end]

    def option(self, *names: str) -> tuple[Word, str] | None:
        """Return an option and its value, --name=value or --name value; underscores count as dashes."""
        own = self.own
        for index, word in enumerate(own):
            name, equals, value = word.text.partition("=")
            plain = name.lstrip("-").replace("_", "-")
            if not name.startswith("-"):
                continue
            if plain in names:
                follows = own[index + 1].text if not equals and index + 1 < len(own) else ""
                return word, value if equals else "" if follows.startswith("--") else follows
            short = word.text[1:2]
            if not word.text.startswith("--") and short in names and word.text[2:]:
                return word, word.text[2:].removeprefix("=")
        return None


def starts(command: Command) -> list[Start]:
    """Return the programs of a command from the outside in."""
    outer = starts(command.outer) if command.outer else []
    argv = command.argv
    marks: list[tuple[int, int, str]] = []
    index = 0
    while index < len(argv):
        name = argv[index].text.rpartition("/")[2]
        if name in SHELLS or (marks and marks[-1][2] == "echelon"):
            break
        if name in PROGRAMS and not _is_value(argv, index):
            first, name = _module(argv, index, name)
            marks.append((index, first, name))
            if name in ("python", "python3", *LAUNCHERS) and name not in ("mpirun", "mpiexec"):
                break  # what follows is the user's own
            index = first
            continue
        index += 1
    found: list[Start] = []
    for number, (at, first, name) in enumerate(marks):
        end = marks[number + 1][0] if number + 1 < len(marks) else len(argv)
        before = (*outer, *found)
        found.append(Start(name=name, command=command, word=argv[at], words=argv[first:end], outer=before))
    return found


def _is_value(argv: tuple[Word, ...], index: int) -> bool:
    """Tell whether the word is the value of an option, or an argument of a program that only looks at it."""
    return index > 0 and argv[0].text in ("module", "ml", "which", "command", "echo", "pip", "conda", "type", "alias")


def _module(argv: tuple[Word, ...], index: int, name: str) -> tuple[int, str]:
    """Return where the arguments begin, and what `python -m …` or `accelerate launch` is."""
    if name.startswith("python"):
        for at in range(index + 1, min(index + 5, len(argv) - 1)):
            if argv[at].text == "-m":
                module = argv[at + 1].text
                return (at + 2, MODULES[module]) if module in MODULES else (index + 1, "python")
            if not argv[at].text.startswith("-"):
                break
        return index + 1, "python"
    if name == "accelerate" and index + 1 < len(argv) and argv[index + 1].text == "launch":
        return index + 2, name
    return index + 1, name
