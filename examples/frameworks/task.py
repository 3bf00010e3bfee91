"""What the examples of this folder learn: to tell apart ten kinds of points. In numpy alone, by one process:

    python task.py

The points and the weights to start from are always the same, and each step takes the next rows, shared out among the
ranks. So whichever framework trains, and on however many ranks, its losses are those that this prints.
"""

import argparse
import math
import sys

import numpy as np

FEATURES, KINDS = 16, 10
LEARNING_RATE = 0.5


def new_parser(description: str) -> argparse.ArgumentParser:
    """Return a parser with the sizes that all examples have."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--batch-size", type=int, default=64, help="rows in a step, over all ranks")
    parser.add_argument("--width", type=int, default=32, help="of the hidden layer")
    return parser


def rows_of_a_rank(batch_size: int, ranks: int) -> int:
    """Return how many rows of a step each rank has; equal shares, or the mean of the ranks' losses is not the loss."""
    if batch_size < 1 or batch_size % ranks:
        fitting = max(1, math.ceil(batch_size / ranks)) * ranks
        print(f"{ranks} ranks cannot share {batch_size} rows: try --batch-size {fitting}", file=sys.stderr)
        raise SystemExit(2)
    return batch_size // ranks


def draw_points(rows: int) -> tuple[np.ndarray, np.ndarray]:
    """Return points around ten centres, and of which kind each is."""
    centres = np.random.default_rng(seed=0).normal(size=(KINDS, FEATURES))
    kinds = np.random.default_rng(seed=1).integers(KINDS, size=rows)
    points = centres[kinds] + np.random.default_rng(seed=2).normal(scale=0.5, size=(rows, FEATURES))
    return points.astype(np.float32), kinds


def draw_weights(width: int) -> list[np.ndarray]:
    """Return the weights and biases of two layers, of shape (inputs, outputs) and (outputs,)."""
    draw = np.random.default_rng(seed=3)
    first = draw.normal(scale=1 / math.sqrt(FEATURES), size=(FEATURES, width))
    second = draw.normal(scale=1 / math.sqrt(width), size=(width, KINDS))
    weights = [first, np.zeros(width), second, np.zeros(KINDS)]
    return [weight.astype(np.float32) for weight in weights]


def loss_and_gradients(
    weights: list[np.ndarray], points: np.ndarray, kinds: np.ndarray
) -> tuple[float, list[np.ndarray]]:
    """Return the mean cross entropy of these rows, and its gradients."""
    first, first_bias, second, second_bias = weights
    hidden = np.tanh(points @ first + first_bias)
    scores = hidden @ second + second_bias
    scores -= scores.max(axis=1, keepdims=True)
    shares = np.exp(scores) / np.exp(scores).sum(axis=1, keepdims=True)
    rows = np.arange(len(kinds))
    loss = -np.log(shares[rows, kinds]).mean()
    shares[rows, kinds] -= 1
    to_scores = shares / len(kinds)
    to_hidden = to_scores @ second.T * (1 - hidden**2)
    gradients = [points.T @ to_hidden, to_hidden.sum(axis=0), hidden.T @ to_scores, to_scores.sum(axis=0)]
    return loss.item(), gradients


def main() -> None:
    options = new_parser(__doc__).parse_args()
    points, kinds = draw_points(options.steps * options.batch_size)
    weights = draw_weights(options.width)
    for step in range(1, options.steps + 1):
        rows = slice((step - 1) * options.batch_size, step * options.batch_size)
        loss, gradients = loss_and_gradients(weights, points[rows], kinds[rows])
        for weight, gradient in zip(weights, gradients, strict=True):
            weight -= LEARNING_RATE * gradient
        print(f"step {step} loss {loss:.6f}")


if __name__ == "__main__":
    main()
