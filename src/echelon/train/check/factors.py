"""Explain a gradient of several ranks that is a multiple of the gradient of one device."""

UNKNOWN = "echelon does not know the cause; perhaps the script draws its own data on each rank"


def meaning(factor: float, num_ranks: int) -> str:
    """Return the likeliest cause of a factor; 0 means that the gradient is no multiple."""
    if abs(factor * num_ranks - 1) < 0.02:
        return (
            f"that is 1/{num_ranks}, one over the number of ranks: the loss is a sum over the batch, or the script "
            "divides it by a constant batch size"
        )
    if abs(factor - num_ranks) < 0.02 * num_ranks:
        return (
            f"that is the number of ranks, {num_ranks}: the script sums gradients over the ranks instead of "
            "taking their mean"
        )
    return UNKNOWN
