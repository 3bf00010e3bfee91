"""Train with numpy and mpi4py: one Allreduce a step for the loss and all gradients.

    python with_mpi.py                one process
    mpiexec -n 2 python with_mpi.py   two ranks on this machine
    salloc --nodes=2 --ntasks-per-node=2 srun --mpi=pmi2 echelon exec python with_mpi.py   two on each of two nodes

`echelon run` starts ranks that know each other as torch does, not as MPI does: start MPI by mpiexec or srun.
"""

import os
import sys

import numpy as np
import task
from mpi4py import MPI


def check_launcher(ranks: int) -> None:
    """Stop where ranks were started without MPI's knowledge, and each would train alone."""
    told = int(os.environ.get("WORLD_SIZE", ranks))
    if told != ranks:
        print(
            f"WORLD_SIZE is {told}, but MPI sees {ranks}: start the ranks by mpiexec, or srun --mpi=pmi2",
            file=sys.stderr,
        )
        raise SystemExit(2)


def main() -> None:
    options = task.new_parser(__doc__).parse_args()
    world = MPI.COMM_WORLD
    rank, ranks = world.Get_rank(), world.Get_size()
    check_launcher(ranks)
    points, kinds = task.draw_points(options.steps * options.batch_size)
    rows = task.rows_of_a_rank(options.batch_size, ranks)
    weights = task.draw_weights(options.width)

    for step in range(1, options.steps + 1):
        begin = (step - 1) * options.batch_size + rank * rows
        mine = slice(begin, begin + rows)
        loss, gradients = task.loss_and_gradients(weights, points[mine], kinds[mine])
        message = np.concatenate([[loss], *(gradient.ravel() for gradient in gradients)]).astype(np.float32)
        world.Allreduce(MPI.IN_PLACE, message)
        loss, *parts = np.split(message / ranks, np.cumsum([1, *(weight.size for weight in weights)])[:-1])
        for weight, part in zip(weights, parts, strict=True):
            weight -= task.LEARNING_RATE * part.reshape(weight.shape)
        if rank == 0:
            print(f"step {step} loss {loss.item():.6f}", flush=True)


if __name__ == "__main__":
    main()
