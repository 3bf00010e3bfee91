"""The launcher whose command line was given after `--`."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Launcher:
    """The parts of another launcher's command line that are no options of `echelon run`."""

    name: str
    """"torchrun", "accelerate launch", "mpirun" …"""
    num_ranks: int = 0
    """Ranks on all nodes together; 0: not stated."""
    num_ranks_text: str = ""
    """The words that state the number of ranks."""
    hosts: tuple[str, ...] = ()
    """Machines that the line names, except this one."""
    rank_argument: str = ""
    """The prefix of the local rank in an extra first argument of each rank, "--local_rank="; empty: no argument."""
    mpi: str = ""
    """The program that starts the ranks of MPI: "mpirun" or "horovodrun", or one of Slurm's own protocols
    ("pmix", "pmi2"); empty: echelon.
    """
    words: tuple[str, ...] = ()
    """mpirun or horovodrun with their options; the program follows."""

    @property
    def is_step(self) -> bool:
        """Whether the launcher itself starts the ranks' agents."""
        return self.mpi in ("mpirun", "horovodrun")
