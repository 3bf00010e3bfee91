"""The meaning of a launcher's command line, in the words of `echelon run`."""

from __future__ import annotations

from dataclasses import dataclass

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
class Line:
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
