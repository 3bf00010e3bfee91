"""What a launcher's command line asks for, in the words of `echelon run`."""

from __future__ import annotations

from dataclasses import dataclass

from echelon.spec import Command


@dataclass(frozen=True, slots=True, kw_only=True)
class Given:
    """One option of a command line."""

    key: str
    """Its name without dashes: of the launcher while its line is read, of `echelon run` in a `Line`."""
    value: str
    """Empty for a flag."""
    text: str
    """As it was typed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MpiStart:
    """A line whose ranks must be started by MPI's own start protocol."""

    kind: str
    """The MPI library's kind of the line's own launcher: "mpirun"; or what was asked of Slurm: "pmix", "pmi2" …"""
    words: tuple[str, ...] = ()
    """The launcher and its options, as typed: the program follows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """A launcher's command line, read."""

    launcher: str
    command: Command
    """What each rank runs."""
    options: tuple[Given, ...] = ()
    """Keys and values as `echelon run` has them, with the launcher's own words."""
    num_ranks: int = 0
    """Ranks on all nodes together, where the line counts so; 0: it does not say."""
    num_ranks_text: str = ""
    environ: tuple[tuple[str, str], ...] = ()
    """What the launcher would have set beyond rank and place."""
    devices: str = ""
    """Devices that the ranks of each node shall see, "0,2"; empty: all."""
    hosts: tuple[str, ...] = ()
    """Machines that the line names, this one aside."""
    rank_argument: str = ""
    """What stands before its local rank in the first argument that each rank gets, as "--local_rank="; empty: none."""
    mpi: MpiStart | None = None
    no_meaning: tuple[tuple[str, str], ...] = ()
    """Options without a meaning here, each with the reason."""
    note: str = ""
    """What the launcher itself would have done otherwise, where that is worth a word."""
