"""The launcher whose command line was given after `--`."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Launcher:
    """What of another launcher's command line is not an option of `echelon run`."""

    name: str
    """"torchrun", "accelerate launch", "mpirun" …"""
    num_ranks: int = 0
    """Ranks on all nodes together, where its line counts so; 0: it does not say."""
    num_ranks_text: str = ""
    """The words that say it."""
    hosts: tuple[str, ...] = ()
    """Machines that its line names, this one aside."""
    rank_argument: str = ""
    """What stands before its local rank in the first argument of each rank, as "--local_rank="; empty: none."""
    mpi: str = ""
    """What starts the ranks of an MPI program: "mpirun" or "horovodrun", or Slurm's word for one of its own ways
    ("pmix", "pmi2"); empty: echelon."""
    words: tuple[str, ...] = ()
    """mpirun or horovodrun with their options; the program follows."""

    @property
    def is_step(self) -> bool:
        """Whether the launcher itself starts the ranks' agents."""
        return self.mpi in ("mpirun", "horovodrun")
