"""What `echelon bench scaling` measures: a script on numbers of ranks that fit the devices, each several times."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from echelon.environment import digits, threads
from echelon.errors import UsageError
from echelon.trials.own_runs import TriedScript
from echelon.units import counted

STRONG, WEAK = "strong", "weak"


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """A number of ranks, and the nodes that they are on."""

    num_ranks: int
    num_nodes: int
    """0: Slurm decides when the job is submitted."""

    @property
    def words(self) -> list[str]:
        """The options of `echelon run` that give this size."""
        return ["--nnodes", str(self.num_nodes), "-n", str(self.num_ranks // self.num_nodes)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Question(TriedScript):
    """What is measured."""

    is_own: bool
    """Whether the script distributes itself."""
    sizes: tuple[Size, ...]
    """From the smallest to the largest; at least two."""
    mode: str
    """"strong": all sizes have the same global batch; "weak": all ranks have the same batch."""
    num_steps: int
    """The optimizer steps of each run; 0: the script ends by itself."""
    warm_up: int
    """The first steps, which do not count."""
    num_repeats: int
    timeout: str
    """The time limit of each run as the option gives it; empty: none."""

    @property
    def title(self) -> str:
        """Say in a few words what is measured.

        >>> Question(script="train.py", arguments=(), is_module=False, is_own=False, sizes=(), mode="strong",
        ...          num_steps=100, warm_up=40, num_repeats=2, options=(), timeout="").title
        'train.py, strong scaling (same global batch), 100 steps each, 2 runs each'
        """
        batch = "same global batch" if self.mode == STRONG else "same batch for each rank"
        words = [f"{self.script}, {self.mode} scaling ({batch})"]
        words += [f"{counted(self.num_steps, 'step')} each"] if self.num_steps else []
        words += [f"{counted(self.num_repeats, 'run')} each"] if self.num_repeats > 1 else []
        return ", ".join(words)

    def work(self, num_ranks: int, base: int) -> float:
        """Return the work of a step, in steps of `base` ranks: with weak scaling it grows with the ranks."""
        return num_ranks / base if self.mode == WEAK else 1.0


FEWEST_SIZES = 2
MOST_RANKS = 1 << 20


def parse(text: str, *, fewest: int = FEWEST_SIZES) -> tuple[int, ...]:
    """Return the numbers of ranks, ascending; raise UsageError for anything but whole numbers, or for too few.

    >>> parse("1,4,2")
    (1, 2, 4)
    """
    numbers = {digits.whole(word.strip()) for word in text.split(",")}
    if not all(0 < number <= MOST_RANKS for number in numbers):
        raise UsageError(f"--ranks {text or repr('')}: give whole numbers of at least 1", hint="--ranks 1,2,4,8")
    if len(numbers) < fewest:
        (number,) = numbers
        raise UsageError(
            f"--ranks {text}: scaling compares at least {FEWEST_SIZES} sizes",
            hint=f"--ranks 1,{number}" if number > 1 else "--ranks 1,2",
        )
    return tuple(sorted(numbers))


def usual(plan: Mapping[str, Any]) -> tuple[int, ...]:
    """Return the powers of two up to the devices at hand, or up to the cores of a machine without devices."""
    most = _num_devices(plan) or threads.num_cores() * len(plan["nodes"])
    numbers = tuple(1 << power for power in range(most.bit_length()))
    if len(numbers) < FEWEST_SIZES:
        raise UsageError(
            f"this machine has {counted(_num_devices(plan), 'device') if _num_devices(plan) else 'one core'}, and "
            f"scaling compares at least {FEWEST_SIZES} sizes",
            hint="--ranks 1,2" + (" --share-devices" if _num_devices(plan) else ""),
        )
    return numbers


def place(plan: Mapping[str, Any], numbers: Sequence[int], *, shares_devices: bool) -> tuple[Size, ...]:
    """Return each size with the nodes that it needs; `plan` is the plan of a run on all nodes at hand.

    Ranks fill one node after the other. On nodes without devices, they are spread over as many nodes as share them
    equally. Raise UsageError for a size that does not fit.
    """
    return tuple(_placed(plan, number, numbers, shares_devices) for number in numbers)


def _placed(plan: Mapping[str, Any], number: int, numbers: Sequence[int], shares_devices: bool) -> Size:
    num_nodes, per_node = len(plan["nodes"]), int(plan["devices_per_node"])
    if per_node and number > num_nodes * per_node and not shares_devices:
        fitting = [each for each in numbers if each <= num_nodes * per_node]
        choices = fitting if len(fitting) >= FEWEST_SIZES else usual(plan)
        raise UsageError(
            f"--ranks {number}: there are {counted(num_nodes * per_node, 'device')} here, "
            f"{per_node} on {counted(num_nodes, 'node') if num_nodes > 1 else 'this node'}; the choices are 1 to "
            f"{num_nodes * per_node}",
            hint=f"--ranks {','.join(map(str, choices))}   or --share-devices, or a larger allocation, or --submit",
        )
    needed = -(-number // per_node) if per_node else 0
    if not per_node or needed > num_nodes:
        shared = next(nodes for nodes in range(num_nodes, 0, -1) if number % nodes == 0)
        return Size(num_ranks=number, num_nodes=shared)
    if number % needed:
        below, above = number - number % per_node, number + -number % per_node
        raise UsageError(
            f"--ranks {number}: {needed} nodes with {per_node} devices each cannot share {number} ranks equally",
            hint=f"use {below} or {above} ranks in place of {number}",
        )
    return Size(num_ranks=number, num_nodes=needed)


def _num_devices(plan: Mapping[str, Any]) -> int:
    return len(plan["nodes"]) * int(plan["devices_per_node"])
