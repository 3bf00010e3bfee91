"""What a person is told of a training that is not that of one device."""

from ...scale_options import ScaleOptions


def headline(num_ranks: int, options: ScaleOptions) -> str:
    """Return the line that says what is trained instead."""
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
