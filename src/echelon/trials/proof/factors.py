"""The causes of a difference, as sentences; and what it means when a number is a multiple of the right one."""

from echelon.train.check.factors import meaning

ALONE = (
    "each rank has its own gradient: the ranks do not exchange gradients, so every rank trains alone; check that the "
    "script calls the model that DistributedDataParallel or fully_shard returned"
)
ALONE_AMONG_OTHERS = (
    "each rank has its own gradient of %s, but the ranks exchange other gradients: this parameter was added or "
    "unfrozen after the model was wrapped, or the exchange leaves it out"
)
RIGHT_ON = "it is right only on %s: the other ranks do not get the sum of the gradients; use all_reduce, not reduce"
PARTS_OF_SUM = (
    "each rank has a part of it, and the parts add up to the gradient of one device: if several ranks share a tensor "
    "(a norm, a tied embedding, the input of a cut layer), an all-reduce must add up its gradients"
)
SCALED_APART = "each rank scales it by another factor: by its own gradient norm, or its own loss scale"
SCALED_BEFORE = (
    "the ranks' gradients enter it with the weights %s, but the weights should be equal: each rank scales its own "
    "gradient before the exchange, as clipping by its own norm does; exchange first, then clip"
)
MEAN_OF_MEANS = (
    "it is a mean of means: each rank's loss has the same weight, but is a mean over another number of %s; one device "
    "weights them %s; divide the sum by the number over all ranks"
)
SAMPLES, ENTRIES = "samples", "tokens, or other entries of the mean"
OWN_NORM = (
    "each rank scales its shard by another factor, %s: it clips by the gradient norm of its own shard, not of the "
    "whole gradient"
)
PAIRED = (
    "the ranks give different tensors to the same all-reduce: %s; a gradient that is None on some rank, or another "
    "order, shifts all later ones; reduce the same tensors in the same order on every rank"
)
CUT_FACTOR = (
    "a tensor that is cut into pieces is %s times as large: the sum over the ranks is taken twice, in forward and in "
    "backward, or is divided by their number"
)
SHARE = (
    "it is 1/%d of the right gradient, and ranks share a layer: each rank has only the gradient of its own "
    "contribution in forward, and no all-reduce adds up these gradients"
)
PASSES = (
    "a step has %d backward passes on one device but %d on each rank, and the script divides the loss by the same "
    "number on both; divide it by the number of passes of the rank"
)
OWN_STATE = (
    "the ranks' optimizers are in different states: only some ranks loaded, or initialized, the state; load it on all "
    "ranks, or broadcast it"
)
DIVIDED_AFTER = (
    "the optimizer uses 1/%d of the mean of the ranks' gradients: the script divides the mean by the number of ranks "
    "once more"
)
NOT_OF_RANKS = (
    "all ranks have the same tensor, but it is no combination of the ranks' own tensors: the exchange is no sum (it "
    "may be a maximum), or changes the tensor"
)
SMALL_GROUP = "not all ranks exchange gradients: a group of %d adds them up, but %d ranks have different samples"
PASSED_BACK = (
    "the forward pass and its loss are right, and so is the gradient of %s, but the gradient that it passes back is "
    "wrong; check what one stage sends to the stage before, or the backward of the operation that joins the ranks"
)
OTHER_LAYER = (
    "it has the weights that %s has on one device: the script loaded the weights of another layer, or of another stage "
    "of a pipeline"
)
PARTLY = (
    "it is not the mean of the ranks' own tensors, but that mean would be right: the ranks do not exchange it, or "
    "exchange only a part; no exchange follows some backward passes"
)
OTHER_START = (
    "the weights differ before the first step: let every rank begin with the same weights: call torch.manual_seed(0) "
    "before the model is made, or load the weights"
)
START_OF_ONE_RANK = (
    "the ranks have different weights before the first step: let every rank begin with the same weights: call "
    "torch.manual_seed(0) before the model is made, or load, and broadcast, the weights on all ranks"
)
ALIKE_PIECES = (
    "the ranks' pieces of it hold the same numbers: every rank draws its piece with the same seed, but each piece is "
    "another part of one tensor"
)
OTHER_MODEL = (
    "the two runs do not train the same tensors: the model is another one, or is cut without DTensor (by its own "
    "tensor parallel layers, or a pipeline); such pieces cannot be compared tensor by tensor"
)
NOT_TRAINED = (
    "no rank trains it, because no optimizer has it there: no stage of a pipeline has its layer, or a group of "
    "parameters was not added"
)
NOT_TRAINED_ON = (
    "some ranks train it, but not %s: it is frozen there, or in another group of parameters; all ranks that share the "
    "samples must train the same parameters"
)
SCALED_WHOLE = (
    "the loss is right, but all gradients are scaled by one number: the script clips by another norm than that of the "
    "whole gradient, or does not undo another scale"
)
NO_GRADIENT = (
    "only one of the two runs has a gradient for it: a part of the model is not used there, or detach() or no_grad() "
    "cuts it off"
)
OTHER_SAMPLES = (
    "the two runs did not train on the same samples in this step: they draw different samples, or change them at "
    "random; use a sampler with a seed, and the same sampler on one rank and on several"
)
OTHER_EPOCHS = (
    "the two runs did not train on the same samples: the ranks' samplers are at different epochs (%s), so the ranks "
    "draw some samples twice and never draw others; give set_epoch() the same number on every rank"
)
OTHER_SEEDS = (
    "the two runs did not train on the same samples: the ranks' samplers have different seeds (%s), so the ranks draw "
    "some samples twice and never draw others"
)
DRAWN_TWICE = (
    "the two runs did not train on the same samples: several ranks draw %d of %d samples in one pass, and no rank "
    "draws others: each rank shuffles or splits the data at random; use the same seed on all ranks"
)
OF_BATCH_NORM = "%s is a BatchNorm that uses the statistics of each rank's own samples"
OTHER_NORM = ": a norm that does not depend on the batch, such as GroupNorm, needs none"
SYNCED_BY_SCRIPT = (
    ": SyncBatchNorm.convert_sync_batchnorm(model) uses those of all ranks, or use a norm that does not depend on the "
    "batch"
)
OWN_BUFFER = (
    "the ranks have different values: each rank computes it from its own samples, or only one rank updates it; reduce "
    "its inputs over all ranks, or broadcast it"
)
OTHER_BUFFER = "all ranks have the same value, but not that of one device: it is computed from one rank's samples"
GATHER = (
    "the script sends tensors that need a gradient through torch.distributed.all_gather, which passes no gradient "
    "back, so their effect on other ranks' samples is lost; torch.distributed.nn.functional.all_gather passes it back"
)
DRAWS = (
    "the script draws random numbers between the batch and the step, and each rank draws others: its own noise or "
    "masks, which is fine, but not what one device draws"
)
SAME_DRAWS = (
    "the script draws random numbers between the batch and the step, and all ranks draw the same numbers for different "
    "samples: give each rank's generator its own seed after the model is made, or draw a sample's numbers by its "
    "index in the data"
)
OWN_LEARNING_RATE = (
    "the ranks have different learning rates: the schedule follows a number that differs between ranks, such as the "
    "loss of their samples; give it the mean of all ranks"
)
SCHEDULE_TOO_FAST = "the schedule runs %d times as fast: it steps once for each rank instead of once for each step"
SCHEDULE_TOO_SLOW = (
    "the schedule runs at 1/%d of its pace: its length counts the steps of a single rank, but several ranks share "
    "these steps"
)
NOT_ZEROED = "it still contains the gradient of the step before: not every rank calls zero_grad() for it"
NOT_UPDATED = (
    "its gradient is right, but it is not updated on %s: the rank that updates it does not send it to all others, or "
    "no optimizer has it"
)
UPDATED_APART = "its gradient is right, but the ranks update it differently: their optimizers are in different states"


def of_loss(factor: float, num_ranks: int) -> str:
    """Return why each rank's own gradient is a multiple of the right one."""
    if abs(factor - num_ranks) < 0.02 * num_ranks:
        return (
            f"that is the number of ranks, {num_ranks}: each rank multiplies its loss by this number, "
            "or sums over the ranks"
        )
    counts = range(2, 129) if abs(factor * num_ranks - 1) >= 0.02 else ()
    for count in counts:
        if abs(factor - count) < 2e-3 * count or abs(factor * count - 1) < 2e-3:
            act = "multiplies it by" if factor > 1 else "divides it by"
            return (
                f"the script {act} the number {count}, which is not the number of ranks; it may be the number of "
                "backward passes of a step, or a constant batch size"
            )
    return of_own(factor, num_ranks)


def of_own(factor: float, num_ranks: int) -> str:
    """Return the meaning of a factor for a script that distributes itself: it has more ways to make a mistake."""
    if abs(factor * num_ranks - 1) < 0.02:
        return (
            f"that is 1/{num_ranks}, one over the number of ranks: the loss is a sum over each rank's samples and "
            "gradients are averaged, or the script divides them by the number of ranks twice"
        )
    if abs(factor**2 * num_ranks - 1) < 0.02:
        return (
            f"that is one over the root of {num_ranks}: the script clips by a norm that is summed over the ranks, but "
            "each rank already has the whole gradient"
        )
    if abs(factor * num_ranks**2 - 1) < 0.02:
        return f"that is 1/{num_ranks}²: the script divides by the number of ranks twice"
    return meaning(factor, num_ranks)


def of_learning_rate(factor: float, num_ranks: int) -> str:
    for number, name in (
        (num_ranks, "the number of ranks"),
        (num_ranks**0.5, "the root of the number of ranks"),
        (num_ranks**2, "the number of ranks, twice"),
    ):
        if abs(factor - number) < 1e-3 * number:
            return f"the script multiplies it by {name}"
    return "the script, or its schedule, makes it depend on the number of ranks or batches"
