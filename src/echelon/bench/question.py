"""What `echelon bench scaling` measures: a script at several sizes, each several times."""

from __future__ import annotations

from dataclasses import dataclass

from echelon.units import counted

STRONG, WEAK = "strong", "weak"


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """A number of ranks, and the nodes that they are on."""

    num_ranks: int
    num_nodes: int
    """0: Slurm decides when the job is submitted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """What is measured."""

    script: str
    arguments: tuple[str, ...]
    is_module: bool
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
    options: tuple[str, ...]
    """Of `echelon run`, for every run."""
    timeout: str
    """The time limit of each run as the option gives it; empty: none."""

    @property
    def command(self) -> tuple[str, ...]:
        """Return the script and its arguments as words."""
        return (*(["-m"] if self.is_module else []), self.script, *self.arguments)

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
