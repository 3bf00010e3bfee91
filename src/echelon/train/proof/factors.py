"""What it means when a gradient is a multiple of the one that it should be."""

WHOLE_BATCH = "a part of the script looks at the whole batch (BatchNorm, pairs within a batch), or draws its own data"
ALONE = (
    "each rank has a gradient of its own: they are not exchanged, so every rank trains alone; "
    "is the model that is called the one in DistributedDataParallel, or under fully_shard?"
)
ALONE_AMONG_OTHERS = (
    "each rank has a gradient of its own of %s, while others are exchanged: it was added, or unfrozen, after the model "
    "was wrapped, or is left out of what is reduced"
)
RIGHT_ON = "it is right on %s alone: the sum of the gradients does not reach the other ranks; reduce is not all_reduce"
PARTS_OF_SUM = (
    "each rank has a part of it, and they add up to that of one device: the gradients of a tensor that several ranks "
    "share (a norm, a tied embedding, the input of a layer that is cut) are to be summed by an all-reduce"
)
SCALED_APART = (
    "it is scaled by a factor of its own on each rank: by a gradient norm, or a loss scale, that is the rank's own"
)
SCALED_BEFORE = (
    "ranks' gradients go into it with the weights %s, where these should be the same: each rank scales its own before "
    "they are exchanged, as clipping by its own norm does; exchange first, then clip"
)
MEAN_OF_MEANS = (
    "a mean of means: each rank's loss counts the same, though it is the mean of other numbers of %s; one device "
    "weighs them %s; divide the sum by the number of all ranks"
)
OWN_NORM = (
    "each rank's shard is scaled by a factor of its own, %s: the gradient norm by which it was clipped is that of the "
    "rank's own shard, not of the whole"
)
PAIRED = (
    "ranks give different tensors to one all-reduce: %s; a gradient that is None on some rank, or another order, "
    "shifts all that follow: reduce the same tensors in the same order on every rank"
)
CUT_FACTOR = (
    "a tensor that is cut into pieces is %s times as large: a sum over the ranks is taken twice, forwards and again "
    "backwards, or is divided by their number"
)
SHARE = (
    "it is 1/%d of what it should be, where ranks share a layer: each has the gradient of its share of what it adds in "
    "forward, and these are not summed"
)
PASSES = (
    "a step has %d backward passes on one device and %d on each rank, and the loss is divided by a number that is the "
    "same on both: divide it by the passes that the rank makes"
)
OWN_STATE = (
    "the ranks' optimizers are not in the same state: it was loaded, or begun, on some of them alone; load it on all, "
    "or broadcast it"
)
DIVIDED_AFTER = (
    "what is used is 1/%d of the mean of the ranks' gradients: their mean is divided by the number of ranks once more"
)
NOT_OF_RANKS = (
    "all ranks have the same, and it is no combination of what they found by themselves: it is exchanged by something "
    "else than a sum, such as a maximum, or changed on the way"
)
SMALL_GROUP = (
    "the gradients are not exchanged among all: they are summed in a group of %d, and there are %d ranks that each "
    "have other samples"
)
PASSED_BACK = (
    "the forward pass and its loss are right, and so is the gradient of %s: what is passed back from there is not; "
    "look at what one stage sends to the one before, or at the backward of what joins the ranks"
)
OTHER_LAYER = (
    "it has the weights that %s has on one device: those of another layer, or of another stage of a pipeline, "
    "were loaded"
)
PARTLY = (
    "it is not the mean of what the ranks found by themselves, though that would be right: it is not exchanged, or "
    "only a part of it; some backward passes are not followed by an exchange"
)
OTHER_START = (
    "the weights differ before the first step: let every rank begin with the same ones, "
    "with torch.manual_seed(0) before the model is made, or load them"
)
START_OF_ONE_RANK = (
    "the weights differ between the ranks before the first step: let every rank begin with the same ones, with "
    "torch.manual_seed(0) before the model is made, or load, and broadcast, them on all ranks"
)
ALIKE_PIECES = (
    "the ranks' pieces of it are the same numbers: they are drawn with the same seed on every rank, where each piece "
    "is another part of one tensor"
)
OTHER_MODEL = (
    "the two do not train the same tensors: the model is another one, or is cut by other means than DTensor "
    "(tensor parallel layers of its own, a pipeline), and what is cut so cannot be compared tensor by tensor"
)
NOT_TRAINED = (
    "no rank trains it: it is in no optimizer there; a layer that no stage of a pipeline has, or a group of parameters "
    "that was not added"
)
NOT_TRAINED_ON = (
    "it is trained on some ranks, and not on %s: it is frozen there, or in another group of parameters; all ranks that "
    "share the samples out must train the same parameters"
)
SCALED_WHOLE = (
    "the loss is right, and all gradients are scaled by one number: the norm by which they are clipped is not that of "
    "the whole gradient, or another scale is not undone"
)
NO_GRADIENT = (
    "it has a gradient on one side alone: a part of the model is not used there, or is cut off by detach() or no_grad()"
)
OTHER_SAMPLES = (
    "the two did not train on the same samples in this step: they draw others, or change them by chance; "
    "a sampler that is seeded, and the same on one rank and on several, makes them the same"
)
OTHER_EPOCHS = (
    "the two did not train on the same samples: the ranks' samplers are at different epochs (%s), so some samples are "
    "drawn twice and others never; set_epoch() wants the same number on every rank"
)
OTHER_SEEDS = (
    "the two did not train on the same samples: the ranks' samplers have different seeds (%s), so some samples are "
    "drawn twice and others never"
)
DRAWN_TWICE = (
    "the two did not train on the same samples: %d of %d are drawn by more than one rank in one pass, and others by "
    "none: ranks shuffle or split the data each by its own chance; seed it alike on all of them"
)
BATCH_NORM = (
    "%s is a BatchNorm that takes the statistics of each rank's own samples: "
    "SyncBatchNorm.convert_sync_batchnorm(model) takes those of all, or use a norm that does not look at the batch"
)
OWN_BUFFER = (
    "the ranks have different ones: each makes it from its own samples, or only one rank updates it; reduce what it is "
    "made of over all ranks, or broadcast it"
)
OTHER_BUFFER = "all ranks have the same one, which is not that of one device: it is made of one rank's samples"
GATHER = (
    "tensors that need a gradient go through torch.distributed.all_gather, which passes none back: what they are to "
    "others' samples is lost; torch.distributed.nn.functional.all_gather passes it"
)
DRAWS = (
    "random numbers are drawn between the batch and the step, and each rank draws others: noise or masks of its own, "
    "which is well, but not what one device draws"
)
SAME_DRAWS = (
    "random numbers are drawn between the batch and the step, and all ranks draw the same for other samples: seed each "
    "rank's generator apart, after the model is made, or draw what belongs to a sample by its place in the data"
)
OWN_LEARNING_RATE = (
    "the ranks have different learning rates: the schedule follows a number that is each rank's own, such as the loss "
    "of its samples; give it the mean of all ranks"
)
SCHEDULE_TOO_FAST = "the schedule goes %d times as fast: it is stepped once for each rank, and not once for each step"
SCHEDULE_TOO_SLOW = (
    "the schedule goes at 1/%d of its pace: its length is counted in the steps that one rank would make, though "
    "several ranks share them"
)
NOT_ZEROED = "it still has the gradient of the step before in it: zero_grad() is not called for it on every rank"
NOT_UPDATED = (
    "its gradient is right, and it is not updated on %s: who updates it does not send it to all others, or it is in no "
    "optimizer"
)
UPDATED_APART = (
    "its gradient is right, and the ranks make different updates of it: their optimizers are not in the same state"
)


def of_loss(factor: float, num_ranks: int) -> str:
    """Return why each rank's own gradient is a multiple of what it should be."""
    if abs(factor - num_ranks) < 0.02 * num_ranks:
        return "that is the number of ranks, %d: each rank's loss is multiplied by it, or sums over them" % num_ranks
    if abs(factor * num_ranks - 1) < 0.02:
        return of_own(factor, num_ranks)
    for count in range(2, 129):
        if abs(factor - count) < 2e-3 * count or abs(factor * count - 1) < 2e-3:
            return (
                "%s the number %d, which is not that of the ranks: of backward passes for one step, or a batch size "
                "that is a constant" % ("it is multiplied by" if factor > 1 else "it is divided by", count)
            )
    return of_own(factor, num_ranks)


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
    if abs(factor**2 * num_ranks - 1) < 0.02:
        return (
            "that is one over the root of %d: the norm by which it is clipped is summed over the ranks, each of whom "
            "has the whole gradient already" % num_ranks
        )
    if abs(factor * num_ranks**2 - 1) < 0.02:
        return "that is 1/%d²: divided by the number of ranks twice" % num_ranks
    return meaning(factor, num_ranks)


def of_learning_rate(factor: float, num_ranks: int) -> str:
    """Return why the learning rate of several ranks is another one."""
    for wanted, name in (
        (float(num_ranks), "the number of ranks"),
        (num_ranks**0.5, "the root of the number of ranks"),
        (float(num_ranks**2), "the number of ranks, twice"),
    ):
        if abs(factor - wanted) < 1e-3 * wanted:
            return "the script multiplies it by %s" % name
    return "the script, or its schedule, makes it depend on how many ranks or batches there are"
