"""Train with JAX: every rank is a process of one JAX program.

    python with_jax.py                              one process
    echelon run -n 2 with_jax.py                    two ranks on this machine
    salloc --nodes=2 echelon run -n 2 with_jax.py   two on each of two nodes

The batch is one array over all devices of all ranks; XLA adds what is needed to sum over them.
"""

import functools
import os

import jax
import jax.numpy as jnp
import task
from jax.sharding import Mesh, NamedSharding, PartitionSpec


def loss_of(weights: list[jax.Array], points: jax.Array, kinds: jax.Array) -> jax.Array:
    """Return the mean loss over all rows, wherever they are."""
    first, first_bias, second, second_bias = weights
    scores = jnp.tanh(points @ first + first_bias) @ second + second_bias
    return -jnp.take_along_axis(jax.nn.log_softmax(scores), kinds[:, None], axis=1).mean()


@jax.jit
def train_step(weights: list[jax.Array], *batch: jax.Array) -> tuple[list[jax.Array], jax.Array]:
    """Return the weights after this step, and the loss before it."""
    loss, gradients = jax.value_and_grad(loss_of)(weights, *batch)
    return [weight - task.LEARNING_RATE * gradient for weight, gradient in zip(weights, gradients, strict=True)], loss


def join_ranks() -> None:
    """Meet the other ranks at the address in JAX_COORDINATOR_ADDRESS."""
    if "JAX_NUM_PROCESSES" in os.environ:  # JAX reads the address itself, but not these two
        ranks, rank = (int(os.environ[name]) for name in ("JAX_NUM_PROCESSES", "JAX_PROCESS_ID"))
        jax.distributed.initialize(num_processes=ranks, process_id=rank)


def main() -> None:
    options = task.new_parser(__doc__).parse_args()
    join_ranks()
    rank, rows = jax.process_index(), task.rows_of_a_rank(options.batch_size, jax.process_count())
    points, kinds = task.draw_points(options.steps * options.batch_size)
    weights = task.draw_weights(options.width)
    by_rows = NamedSharding(Mesh(jax.devices(), "data"), PartitionSpec("data"))
    share = functools.partial(jax.make_array_from_process_local_data, by_rows)

    for step in range(1, options.steps + 1):
        begin = (step - 1) * options.batch_size + rank * rows
        mine = slice(begin, begin + rows)
        weights, loss = train_step(weights, share(points[mine]), share(kinds[mine]))
        if rank == 0:
            print(f"step {step} loss {loss.item():.6f}", flush=True)


if __name__ == "__main__":
    main()
