"""What it means when a gradient is a multiple of the one that it should be."""

WHOLE_BATCH = "a part of the script looks at the whole batch (BatchNorm, pairs within a batch), or draws its own data"


def meaning(factor: float, num_ranks: int) -> str:
    """Return the likeliest cause of a factor between the gradients of several ranks and of one; 0: no factor."""
    if abs(factor * num_ranks - 1) < 0.02:
        return (
            "that is 1/%d, one over the number of ranks: the loss is a sum over the batch, "
            "or is divided by a batch size that is a constant" % num_ranks
        )
    if abs(factor - num_ranks) < 0.02 * num_ranks:
        return "that is the number of ranks, %d: gradients are added up where their mean is wanted" % num_ranks
    return WHOLE_BATCH
