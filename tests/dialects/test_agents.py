"""Which rank an agent is that an MPI launcher has started in place of the program."""

import pytest

from echelon.environment.agent_place import mpi_task
from echelon.environment.errors import SurroundingError
from echelon.node.agent_spec import AgentSpec
from echelon.node.starter import with_argument

OPEN_MPI = {
    "OMPI_COMM_WORLD_RANK": "3", "OMPI_COMM_WORLD_SIZE": "4", "OMPI_COMM_WORLD_LOCAL_RANK": "1",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
}  # fmt: skip
HYDRA = {"PMI_RANK": "1", "PMI_SIZE": "2", "MPI_LOCALRANKID": "1", "MPI_LOCALNRANKS": "2", "PMI_FD": "9"}


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        (OPEN_MPI, (3, 1, 1, "", 2)),
        (OPEN_MPI | {"SLURMD_NODENAME": "nid2", "SLURM_PROCID": "0"}, (3, 1, 1, "nid2", 2)),
        (HYDRA, (1, 0, 1, "", 2)),
    ],
    ids=["open-mpi", "open-mpi-in-slurm", "hydra"],
)  # fmt: skip
def test_place_is_what_the_launcher_says(environ: dict[str, str], expected: tuple[object, ...]) -> None:
    """Rank, node, local rank, the node's name in Slurm, and how many there are; not Slurm's task of the daemon."""
    assert tuple(mpi_task(environ)) == expected


@pytest.mark.parametrize("environ", [{}, {"OMPI_COMM_WORLD_RANK": "0"}, HYDRA | {"PMI_RANK": "x"}])
def test_a_launcher_that_says_nothing(environ: dict[str, str]) -> None:
    """The agent ends with the reason."""
    with pytest.raises(SurroundingError):
        mpi_task(environ)


@pytest.mark.parametrize(
    ("argv", "is_python", "expected"),
    [
        (["python", "t.py", "a"], True, ["python", "t.py", "--local_rank=1", "a"]),
        (["python", "-m", "t", "a"], True, ["python", "-m", "t", "--local_rank=1", "a"]),
        (["./t.sh", "a"], False, ["./t.sh", "--local_rank=1", "a"]),
    ],
)
def test_local_rank_stands_before_the_scripts_own_arguments(
    argv: list[str], is_python: bool, expected: list[str]
) -> None:
    """Where DeepSpeed's launcher puts it."""
    spec = AgentSpec(**dict.fromkeys(AgentSpec._fields) | {"argv": argv, "is_python": is_python})
    assert with_argument(spec, "--local_rank=1") == expected
    assert with_argument(spec, "") == argv
