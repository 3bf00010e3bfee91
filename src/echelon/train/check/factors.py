"""What it means when the gradient of several ranks is a multiple of the gradient of one device."""

WHOLE_BATCH = "a part of the script uses the whole batch (BatchNorm, pairs within a batch), or draws its own data"


def meaning(factor: float, num_ranks: int) -> str:
    """Return the likeliest cause of a factor; 0 means that the gradient is no multiple."""
    if abs(factor * num_ranks - 1) < 0.02:
        return (
            "that is 1/%d, one over the number of ranks: the loss is a sum over the batch, or the script "
            "divides it by a constant batch size" % num_ranks
        )
    if abs(factor - num_ranks) < 0.02 * num_ranks:
        return (
            "that is the number of ranks, %d: the script sums gradients over the ranks instead of taking their mean"
            % num_ranks
        )
    return WHOLE_BATCH
