"""Train with TensorFlow's MultiWorkerMirroredStrategy, in a loop of one's own.

    python with_tensorflow.py                              one process
    echelon run -n 2 with_tensorflow.py                    two ranks on this machine
    salloc --nodes=2 echelon run -n 2 with_tensorflow.py   two on each of two nodes

TF_CONFIG is there already. Keras 3's Model.fit refuses this strategy, so the step is written out.
"""

import os

import numpy as np
import task
import tensorflow as tf


def take_own_device() -> None:
    """Leave the other devices of the node to the other ranks: a worker takes all that it sees."""
    devices = tf.config.list_physical_devices("GPU")
    if len(devices) > 1:
        tf.config.set_visible_devices(devices[int(os.environ.get("LOCAL_RANK", "0"))], "GPU")


def main() -> None:
    options = task.new_parser(__doc__).parse_args()
    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    ranks = strategy.num_replicas_in_sync
    rank = strategy.cluster_resolver.task_id or 0
    rows = task.rows_of_a_rank(options.batch_size, ranks)
    points, kinds = task.draw_points(options.steps * options.batch_size)
    with strategy.scope():
        weights = [tf.Variable(weight) for weight in task.draw_weights(options.width)]

    def step_of_a_rank(points: tf.Tensor, kinds: tf.Tensor) -> tf.Tensor:
        first, first_bias, second, second_bias = weights
        with tf.GradientTape() as tape:
            scores = tf.tanh(points @ first + first_bias) @ second + second_bias
            losses = tf.nn.sparse_softmax_cross_entropy_with_logits(kinds, scores)
            loss = tf.reduce_sum(losses) / options.batch_size  # of all ranks: their sum is then the mean
        gradients = tape.gradient(loss, weights)
        gradients = tf.distribute.get_replica_context().all_reduce(tf.distribute.ReduceOp.SUM, gradients)
        for weight, gradient in zip(weights, gradients, strict=True):
            weight.assign_sub(task.LEARNING_RATE * gradient)
        return loss

    @tf.function
    def train_step(points: tf.Tensor, kinds: tf.Tensor) -> tf.Tensor:
        losses = strategy.run(step_of_a_rank, args=(points, kinds))
        return strategy.reduce(tf.distribute.ReduceOp.SUM, losses, axis=None)

    for step in range(1, options.steps + 1):
        begin = (step - 1) * options.batch_size + rank * rows
        mine = slice(begin, begin + rows)
        loss = train_step(tf.constant(points[mine]), tf.constant(kinds[mine].astype(np.int32)))
        if rank == 0:
            print(f"step {step} loss {loss.numpy():.6f}", flush=True)


if __name__ == "__main__":
    take_own_device()
    main()
