"""A shell script as rules see it: commands, variables, and Slurm options, judged for a machine."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import date
from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING

from echelon import units
from echelon.environment import digits
from echelon.errors import UsageError
from echelon.lint import shell
from echelon.lint.batch import BatchHeader, BatchOption
from echelon.lint.batch import read as read_header
from echelon.lint.command import Document, ParsedScript, SimpleCommand
from echelon.lint.executed_commands import running, within_job
from echelon.lint.finding import lines_of
from echelon.lint.pages import words
from echelon.lint.program import Program
from echelon.lint.starts import StartedProgram, starts
from echelon.lint.values import EXPORTS, VariableAssignment, assignments

if TYPE_CHECKING:
    from echelon.machines.machine import Machine, NodeType, Partition

DEVICE_OPTIONS = (
    "gpus", "gpus-per-node", "gres", "gpus-per-task", "gpus-per-socket", "tres-per-task", "ntasks-per-gpu",
)  # fmt: skip
COUNTS = re.compile(r"nodes?\b|ntasks|num_|nproc|world|gpus|multi|dist", re.IGNORECASE)
"""Match words in the test of a branch that distinguishes one node from several."""
MOST_DEVICES = 8  # on an unknown machine, a job with this many devices per node counts as having the whole node


@dataclass(frozen=True, kw_only=True)
class JobScript:
    """A shell script."""

    path: str
    text: str
    today: date
    machine: Machine | None = None
    programs: tuple[Program, ...] = field(default=(), repr=False)
    """The training scripts that were given beside it."""
    scripts: Mapping[str, str] = field(default_factory=dict, repr=False)
    """The texts of the shell scripts that were given beside it, by name."""
    folder_note: Callable[[str], str] = field(default=lambda _: "", repr=False)
    """Tells what is wrong with a folder on this machine's disks; empty if nothing is, or if nobody looks."""
    writer: JobScript | None = field(default=None, repr=False)
    """The script that writes this one and fills in its variables."""

    @cached_property
    def lines(self) -> list[str]:
        return lines_of(self.text)

    @cached_property
    def header(self) -> BatchHeader:
        """The options that the script gives to Slurm."""
        return read_header(self.lines)

    @cached_property
    def script(self) -> ParsedScript:
        """The parsed commands; empty for a script of another shell."""
        return shell.parse(self.text) if self.is_bash else ParsedScript()

    @cached_property
    def commands(self) -> list[SimpleCommand]:
        """All commands that the job executes; those written in the script are `script.commands`."""
        commands = running(self.script, self.scripts)
        return within_job(commands, self.script.commands) if self.is_batch else commands

    @cached_property
    def is_bash(self) -> bool:
        """Whether the first line names no other shell."""
        first = self.lines[0] if self.lines else ""
        return not first.startswith("#!") or re.search(r"\b(?:ba|da|k)?sh\b", first) is not None

    @cached_property
    def document_lines(self) -> frozenset[int]:
        """The line numbers inside of here-documents, which are no commands of this script."""
        return frozenset(line for document in self.script.documents for line in _lines_of(document))

    @cached_property
    def literal_lines(self) -> frozenset[int]:
        """The lines of here-documents in which the shell expands nothing."""
        return frozenset(
            line for document in self.script.documents if document.is_quoted for line in _lines_of(document)
        )

    @cached_property
    def quoted_lines(self) -> frozenset[int]:
        """The lines that end within a quoted word, after whose end the next line continues."""
        words = (word for command in self.script.commands if command.outer is None for word in command.words)
        return frozenset(
            word.line + number for word in words for number in range(word.raw.count("\n") + 1) if "\n" in word.raw
        )

    @cached_property
    def is_batch(self) -> bool:
        """Whether Slurm reads options of this script."""
        return bool(self.header.options)

    def option(self, name: str) -> BatchOption | None:
        return self.header.last.get(name)

    def value(self, name: str) -> str:
        """Return the value of a Slurm option; empty if it is not given."""
        option = self.option(name)
        return option.value if option else ""

    def asked(self, name: str) -> int:
        """Return the number that a Slurm option asks for; a variable is no number: no shell expands it there."""
        text = self.value(name).partition("-")[0]
        return self.number(text) if "$" not in text or self.writer is not None else 0

    @cached_property
    def partition(self) -> Partition | None:
        """The facts of the partition, if machine and partition are known."""
        name = self.value("partition")
        return next(iter(self.machine.rows(name, self.value("qos")) if self.machine and name else ()), None)

    @cached_property
    def kind(self) -> NodeType | None:
        """The node type of that partition; if it has several, the type of device decides."""
        if self.machine is None or self.partition is None:
            return None
        gres = self.value("gres")
        typed = [kind for kind in self.machine.node_types if kind.gres.count(":") and _names_type(gres, kind.gres)]
        return typed[0] if typed else self.machine.node_type(self.partition)

    @cached_property
    def chip(self) -> tuple[str, str]:
        """The chip of the job's devices and its vendor, from the machine or the options; empty if unknown."""
        if self.kind is not None:
            return self.kind.chip, self.kind.vendor
        names = ("gres", "gpus", "gpus-per-node", "gpus-per-task", "constraint")
        asked = re.split(r"[:,&|*()\[\]=]+", " ".join(map(self.value, names)).lower().replace(" ", ":"))
        rows = words()["chips"]["named"]
        row = next((rows[word] for part in asked for word in (part, part.partition("_")[0]) if word in rows), None)
        return (row[0], row[1]) if row else ("", "")

    @cached_property
    def wants_devices(self) -> bool:
        """Whether any sign shows that the job uses devices."""
        return any(map(self.option, DEVICE_OPTIONS)) or "gpu" in self.value("partition").lower()

    def runs(self, start: StartedProgram, program: Program) -> bool:
        """Say whether a program is the one that is started, by its file name."""
        script = start.script
        return script is not None and os.path.basename(script.text) == os.path.basename(program.path)

    def program(self, start: StartedProgram) -> Program | None:
        return next((program for program in self.programs if self.runs(start, program)), None)

    @cached_property
    def num_nodes(self) -> int:
        """The number of nodes; 1 unless the script asks for more."""
        if asked := self.asked("nodes"):
            return asked
        tasks, devices = self.asked("ntasks"), _count(self.value("gpus"))
        of_tasks = -(-tasks // (self.asked("ntasks-per-node") or tasks or 1))
        return max(1, of_tasks, -(-devices // (_count(self.value("gpus-per-node")) or devices or 1)))

    @cached_property
    def has_known_nodes(self) -> bool:
        """Whether the number of nodes is certain: without it, Slurm may spread tasks over several nodes."""
        if self.option("nodes"):
            return bool(self.asked("nodes")) and "-" not in self.value("nodes")
        return (self.asked("ntasks") < 2 and _count(self.value("gpus")) < 2) or self.num_nodes > 1

    @cached_property
    def devices_per_node(self) -> int:
        """The devices on each node; 0 if none are requested or the number is unknown."""
        if asked := _count(self.value("gpus-per-node")) or devices_of_gres(self.value("gres")):
            return asked
        if total := _count(self.value("gpus")):
            return max(1, total // self.num_nodes)
        tasks = self.tasks_per_node or 1
        if per_task := _count(self.value("gpus-per-task")):
            return per_task * tasks
        shared = self.asked("ntasks-per-gpu")
        return tasks // shared if shared else 0

    @cached_property
    def tasks_per_node(self) -> int:
        """Slurm's tasks on each node; 0 if unknown."""
        if asked := self.asked("ntasks-per-node"):
            return asked
        total = self.asked("ntasks")
        return max(1, total // self.num_nodes) if total else 0

    @cached_property
    def cores_per_node(self) -> int:
        """The cores requested on each node; 0 if unknown."""
        if per_task := self.asked("cpus-per-task"):
            return per_task * (self.tasks_per_node or 1)
        return self.asked("cpus-per-gpu") * self.devices_per_node

    @cached_property
    def memory_option(self) -> BatchOption | None:
        return self.option("mem") or self.option("mem-per-gpu") or self.option("mem-per-cpu")

    @cached_property
    def memory_bytes_per_node(self) -> int:
        """The memory requested on each node; 0 if unknown, or if all memory is requested."""
        option = self.memory_option
        if option is None:
            return 0
        times = {"mem": 1, "mem-per-gpu": self.devices_per_node, "mem-per-cpu": self.cores_per_node}[option.name]
        try:
            text = f"{option.value}M" if digits.is_number(option.value) else option.value
            return units.size_bytes(text) * times
        except (UsageError, OverflowError):
            return 0

    @cached_property
    def has_whole_nodes(self) -> bool:
        return "exclusive" in self.header.last or (self.partition is not None and self.partition.whole_nodes)

    @cached_property
    def takes_all_devices(self) -> bool:
        there = self.kind.num_devices if self.kind else None
        is_wide = self.machine is None and self.num_nodes > 1 and self.devices_per_node != 1
        return self.has_whole_nodes or is_wide or self.devices_per_node >= (there or MOST_DEVICES)

    @cached_property
    def variables(self) -> tuple[VariableAssignment, ...]:
        return tuple(assignments(self.commands))

    @cached_property
    def exported_names(self) -> frozenset[str]:
        names = {
            word.text
            for command in self.commands
            if command.program in EXPORTS
            for word in command.argv[1:]
            if re.fullmatch(r"\w+", word.text)
        }
        return frozenset(names | {variable.name for variable in self.variables if variable.is_exported})

    @cached_property
    def reads_other_files(self) -> bool:
        """Whether a file that is sourced may set variables: one of settings, no environment of Python."""
        sourcing = [each for each in self.commands if each.program in ("source", ".")]
        return any(not re.search(r"activate|bashrc|profile|conda", each.argv[-1].text) for each in sourcing)

    def last(self, name: str) -> VariableAssignment | None:
        return self._last.get(name)

    @cached_property
    def _last(self) -> dict[str, VariableAssignment]:
        return {variable.name: variable for variable in self.variables}

    @cached_property
    def _branched(self) -> frozenset[str]:
        """The variables whose value depends on a branch or on a loop."""
        values: dict[str, set[str]] = {}
        branched: set[str] = set()
        for variable in self.variables:
            values.setdefault(variable.name, set()).add(variable.value)
            if any(block.kind in ("if", "case", "loop") for block in variable.command.blocks):
                branched.add(variable.name)
        loops = {word.text for command in self.commands if command.program == "for" for word in command.argv[1:2]}
        return frozenset({name for name in branched if len(values[name]) > 1} | loops)

    def is_chosen(self, command: SimpleCommand) -> bool:
        """Say whether a command is in a branch that depends on the number of nodes or ranks."""
        if command.outer is not None and self.is_chosen(command.outer):
            return True
        return any(block.number in self._choosing for block in command.blocks if block.kind in ("if", "case"))

    @cached_property
    def _choosing(self) -> frozenset[int]:
        """The numbers of the blocks whose test mentions nodes, tasks or ranks."""
        numbers: set[int] = set()
        for command, follows in pairwise([*self.script.commands, *self.script.commands[-1:]]):
            is_case = command.program == "case"
            if (is_case or command.keyword in ("if", "elif")) and COUNTS.search(
                " ".join(w.text for w in command.words)
            ):
                numbers |= {block.number for block in (follows if is_case else command).blocks[-1:]}
        return frozenset(numbers)

    @cached_property
    def starts(self) -> tuple[StartedProgram, ...]:
        """Every relevant program that is started, in the order of the script; empty for a heterogeneous job."""
        if self.header.is_heterogeneous:
            return ()
        return tuple(start for command in self.commands for start in starts(command))

    def started(self, *names: str) -> Iterator[StartedProgram]:
        return (start for start in self.starts if start.name in names)

    def step_nodes(self, start: StartedProgram) -> int:
        option = start.step.option("nodes", "N") if start.step else None
        return (self.number(option[1].partition("-")[0]) if option else 0) or self.num_nodes

    def step_tasks_per_node(self, start: StartedProgram) -> int:
        """Return how often a step starts a program on each node; 0 if unknown."""
        step = start.step
        if step is None or step.has_unknown:
            return 0 if step else 1
        per_node = step.option("ntasks-per-node")
        total = step.option("ntasks", "n")
        if per_node and not total:
            return self.number(per_node[1])
        if total:
            return -(-self.number(total[1]) // self.step_nodes(start))
        return self.tasks_per_node or 1

    def number(self, text: str, known: frozenset[str] = frozenset()) -> int:
        """Return a whole number, also through a variable that the script or Slurm sets; 0 if unknown.

        `known` are the variables on the way: one that depends on itself is unknown.
        """
        text = text.strip().strip('"')
        if re.fullmatch("[0-9]+", text):
            return digits.whole(text)
        if product := re.fullmatch(r"\$\(\((.+)\*(.+)\)\)", text):
            return self.number(_named(product[1]), known) * self.number(_named(product[2]), known)
        match = re.fullmatch(r"\$\{?(\w+)(?::?-\w+)?\}?", text)
        if not match:
            return 0
        variable = self.last(match[1])
        if match[1] in known or (variable and (match[1] in self._branched or "+=" in variable.word.raw)):
            return 0
        if variable is not None and f"${match[1]}" not in variable.value and f"{{{match[1]}" not in variable.value:
            return self.number(variable.value, known | {match[1]})
        return self._slurm_number(match[1])

    def _slurm_number(self, name: str) -> int:
        prefix = words()["slurm"]["variable"]
        if not name.startswith(prefix):
            return self.writer.number(f"${name}") if self.writer is not None else 0
        numbers = {
            "NNODES": self.num_nodes,
            "JOB_NUM_NODES": self.num_nodes,
            "NTASKS": self.tasks_per_node * self.num_nodes,
            "NPROCS": self.tasks_per_node * self.num_nodes,
            "NTASKS_PER_NODE": self.asked("ntasks-per-node"),
            "CPUS_PER_TASK": self.asked("cpus-per-task"),
            "GPUS_ON_NODE": self.devices_per_node,
        }
        return numbers.get(name.removeprefix(prefix), 0)


def _lines_of(document: Document) -> range:
    return range(document.line, document.line + document.text.count("\n") + 1)


def devices_of_gres(text: str) -> int:
    """Return the devices that gpu:a100:4,nvme:100 requests on a node; 0 for none."""
    total = 0
    for part in text.split(","):
        fields = part.partition("(")[0].removeprefix("gres/").split(":")
        if fields[0] == "gpu":
            total += digits.whole(fields[-1], 1)
    return total


def _count(text: str) -> int:
    return digits.whole(text.rpartition(":")[2])


def _names_type(asked: str, gres: str) -> bool:
    return any(f"{part.partition('(')[0]}:".startswith(f"{gres}:") for part in asked.split(","))


def _named(text: str) -> str:
    text = text.strip()
    return text if digits.is_number(text) or text.startswith("$") else f"${text}"
