"""The line that says, at the beginning, how a script is scaled."""

from ..scale_options import ScaleOptions
from .compression import described
from .world import World


def headline(world: World, options: ScaleOptions) -> str:
    """Return the line for ranks that share batches."""
    if options.steps_alone:
        return _of_steps_alone(world.size, options)
    if not world.is_exact:
        return (
            "scaled over %d ranks: each computes its part of every batch, and sees the losses and counts of the whole"
            % world.size
        ) + described(options.compress)
    num_ranks, num_shards = world.processes.size, world.size
    valid = [str(1 << power) for power in range(num_shards.bit_length())]
    return "scaled over %d rank%s in %d shards: the same bits on %s or %s ranks" % (
        num_ranks, "s" if num_ranks > 1 else "", num_shards, ", ".join(valid[:-1]), valid[-1],
    )  # fmt: skip


def _of_steps_alone(num_ranks: int, options: ScaleOptions) -> str:
    steps = "step" if options.steps_alone == 1 else "%d steps" % options.steps_alone
    name, what = "local SGD", "average their weights"
    if options.outer_learning_rate != 1.0 or options.outer_momentum:
        name = "DiLoCo"
        what = "move by their mean progress with Nesterov's momentum %g and learning rate %g" % (
            options.outer_momentum, options.outer_learning_rate,
        )  # fmt: skip
    late = ", taken in one meeting later" if options.is_late else ""
    return (
        "this training differs from one device: %d ranks train alone, each on its part of every batch, and %s "
        "after every %s (%s%s); echelon does not compare the first step" % (num_ranks, what, steps, name, late)
    )
