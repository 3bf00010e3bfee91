"""What it means when a gradient is a multiple of the one that it should be."""

WHOLE_BATCH = "a part of the script looks at the whole batch (BatchNorm, pairs within a batch), or draws its own data"
ALONE = (
    "each rank has a gradient of its own: they are not exchanged, so every rank trains alone; "
    "is the model that is called the one in DistributedDataParallel, or under fully_shard?"
)
OTHER_START = (
    "the weights differ before the first step: let every rank begin with the same ones, "
    "with torch.manual_seed(0) before the model is made, or load them"
)
OTHER_MODEL = (
    "the two do not train the same tensors: the model is another one, or is cut by other means than DTensor "
    "(tensor parallel layers of its own, a pipeline), and what is cut so cannot be compared tensor by tensor"
)
OTHER_SAMPLES = (
    "the two did not train on the same samples in this step: they draw others, or change them by chance; "
    "a sampler that is seeded, and the same on one rank and on several, makes them the same"
)


def meaning(factor: float, num_ranks: int) -> str:
    """Return the likeliest cause of a factor between the gradients of several ranks and of one; 0: no factor."""
    if abs(factor * num_ranks - 1) < 0.02:
        return (
            "that is 1/%d, one over the number of ranks: the loss is a sum over the batch, "
            "or is divided by a batch size that is a constant" % num_ranks
        )
    if abs(factor - num_ranks) < 0.02 * num_ranks:
        return "that is the number of ranks, %d: gradients are summed over the ranks, where their mean is wanted" % (
            num_ranks
        )
    return WHOLE_BATCH


def of_own(factor: float, num_ranks: int) -> str:
    """Return the same for a script that distributes itself, which has more ways to come to a factor."""
    if abs(factor * num_ranks - 1) < 0.02:
        return (
            "that is 1/%d, one over the number of ranks: the loss is a sum over each rank's samples and "
            "gradients are averaged, or they are divided by the number of ranks twice" % num_ranks
        )
    if abs(factor * num_ranks**2 - 1) < 0.02:
        return "that is 1/%d²: divided by the number of ranks twice" % num_ranks
    return meaning(factor, num_ranks)


def of_learning_rate(factor: float, num_ranks: int) -> str:
    """Return why the learning rate of several ranks is another one."""
    for wanted, name in (
        (float(num_ranks), "the number of ranks"),
        (num_ranks**0.5, "the root of the number of ranks"),
    ):
        if abs(factor - wanted) < 1e-3 * wanted:
            return "the script multiplies it by %s" % name
    return "the script, or its schedule, makes it depend on how many ranks or batches there are"
