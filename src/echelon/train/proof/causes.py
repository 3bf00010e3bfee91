"""Why two trainings differ: each cause is told from others by what the ranks were seen to do, never by the script."""

from typing import Callable, List, Tuple

from . import exchange, factors
from .case import HAS_SHAPE, NOT_THERE, Case, Wrong, relative
from .evidence import bare
from .findings import digest

_ALIKE = 1e-5  # relative: numbers that several ranks have of one thing
Cause = Callable[[Wrong, Case], str]


def of(wrong: Wrong, case: Case) -> str:
    """Return the likeliest cause of what is wrong."""
    for cause in _CAUSES:
        text = cause(wrong, case)
        if text:
            return text
    known = factors.of_own if case.is_own else factors.meaning
    return known(wrong.factor, case.num_ranks)


def _of_learning_rate(wrong: Wrong, case: Case) -> str:
    if wrong.tensor != "learning rate":
        return ""
    ours = [[row["learning_rates"] for row in rows] for rows in case.ours.by_rank]
    if any(rates != ours[0][: len(rates)] for rates in ours[1:]):
        return factors.OWN_LEARNING_RATE
    one = [row["learning_rate"] for row in case.one.rows]
    several = [row["learning_rate"] for row in case.ours.rows]
    several_times = [one[place * case.num_ranks] for place in range(len(several)) if place * case.num_ranks < len(one)]
    if len(several_times) > 1 and _are_alike(several_times, several) and len(set(several_times)) > 1:
        return factors.SCHEDULE_TOO_FAST % case.num_ranks
    slowed = [several[place * case.num_ranks] for place in range(len(one)) if place * case.num_ranks < len(several)]
    if len(slowed) > 1 and _are_alike(one, slowed) and len(set(slowed)) > 1:
        return factors.SCHEDULE_TOO_SLOW % case.num_ranks
    return factors.of_learning_rate(wrong.factor, case.num_ranks)


def _are_alike(one: List[float], other: List[float]) -> bool:
    return all(relative(left, right) < _ALIKE for left, right in zip(one, other))  # noqa: B905


def _of_tensors_there(wrong: Wrong, case: Case) -> str:
    """Tell what is missing on one side: it got no gradient, or is another model."""
    if HAS_SHAPE in wrong.why:
        return factors.OTHER_MODEL
    if not wrong.why.endswith(NOT_THERE):
        return ""
    name = bare(wrong.tensor)
    starts = case.ours.tensors(1, "start")
    without = [rank for rank, start in enumerate(starts) if "initial " + name not in start]
    if without and len(without) < len(starts) and exchange.shares_data(case):
        return factors.NOT_TRAINED_ON % ", ".join("rank %d" % rank for rank in without)
    has_it = [any("initial " + name in start for start in of.tensors(1, "start")) for of in (case.one, case.ours)]
    if has_it == [True, False]:
        return factors.NOT_TRAINED if "is here" not in wrong.why else factors.OTHER_MODEL
    if wrong.tensor.startswith("gradient of ") and all(has_it):
        return factors.NO_GRADIENT
    return factors.OTHER_MODEL


def _of_start(wrong: Wrong, case: Case) -> str:
    """Tell weights that differ between the ranks from those that are another model's."""
    if not wrong.tensor.startswith("initial "):
        return ""
    starts = [one[wrong.tensor] for one in case.ours.tensors(1, "start") if wrong.tensor in one]
    if bare(wrong.tensor) in case.ours.cuts and len(starts) > 1 and starts[0].shape == starts[1].shape:
        return factors.ALIKE_PIECES if bool((starts[0] == starts[1]).all()) else factors.OTHER_START
    whole = case.one.tensors(1, "start")[0]
    one = whole.get(wrong.tensor)
    for label, other in whole.items():
        if label != wrong.tensor and other.dim() > 1 and any(exchange.is_same(start, other) for start in starts):
            return factors.OTHER_LAYER % bare(label)
    if one is not None and any(start.shape == one.shape and bool((start == one).all()) for start in starts):
        return factors.START_OF_ONE_RANK
    return factors.OTHER_START


def _of_buffers(wrong: Wrong, case: Case) -> str:
    """Tell statistics of a rank's own samples from a model that ranks follow apart."""
    if not wrong.tensor.startswith(("buffer ", "parameter ")) or wrong.step > len(case.ours.rows):
        return ""
    others = case.ours.tensors(wrong.step, "others")
    mine = [one[wrong.tensor] for one in others if wrong.tensor in one]
    if not mine:
        return ""
    if any(wrong.tensor.startswith("buffer " + name) for name in _batch_norms(case)):
        return factors.BATCH_NORM % bare(wrong.tensor[len("buffer ") :]).rpartition(".")[0]
    before = case.ours.tensors(1, "others")
    stale = [rank for rank, one in enumerate(others) if wrong.tensor in one and wrong.step > 1
             and exchange.is_same(one[wrong.tensor], before[rank].get(wrong.tensor))]  # fmt: skip
    if stale and "initial " + bare(wrong.tensor) in case.one.tensors(1, "start")[0]:
        return factors.NOT_UPDATED % ", ".join("rank %d" % rank for rank in stale)
    if any(bool((one != mine[0]).any()) for one in mine[1:]):
        return factors.OWN_BUFFER
    return factors.OTHER_BUFFER


def _batch_norms(case: Case) -> List[str]:
    found: List[str] = case.ours.facts[0].get("batch_norms", [])
    return found


def _of_samples(wrong: Wrong, case: Case) -> str:
    """Tell which samples the ranks trained on, where they are not those of one device."""
    place = min(wrong.step, len(case.one.rows), len(case.ours.rows)) - 1
    one, ours = case.one.rows[place], case.ours.rows[place]
    if not case.is_own or not any(rank["samples"] for rank in ours["ranks"]) or digest(one) == digest(ours):
        return ""
    return _of_epochs(case) or _of_drawn_twice(case) or factors.OTHER_SAMPLES


def _of_epochs(case: Case) -> str:
    for loaders in zip(*(facts.get("loaders", []) for facts in case.ours.facts)):  # noqa: B905
        epochs = [loader["epochs"] for loader in loaders]
        if any(theirs != epochs[0][: len(theirs)] for theirs in epochs[1:]):
            shown = ", ".join("%s on rank %d" % (theirs[:3], rank) for rank, theirs in enumerate(epochs))
            return factors.OTHER_EPOCHS % shown
        seeds = [loader["deals"]["seed"] if loader["deals"] else 0 for loader in loaders]
        if len(set(seeds)) > 1:
            return factors.OTHER_SEEDS % ", ".join(str(seed) for seed in seeds)
    return ""


def _of_drawn_twice(case: Case) -> str:
    """Tell samples that several ranks draw in one pass, beyond the few that make their numbers even."""
    steps = _of_first_pass(case)
    drawn = [{sample for row in rows[:steps] for sample in row["drawn"]} for rows in case.ours.by_rank]
    total = sum(len(one) for one in drawn)
    twice = total - len(set().union(*drawn))
    if twice > case.num_ranks - 1:
        return factors.DRAWN_TWICE % (twice, total)
    return ""


def _of_first_pass(case: Case) -> int:
    """Return the step with which the first pass over the data ends."""
    began = [loader["began"] for loader in case.ours.facts[0].get("loaders", []) if loader["is_for_training"]]
    later = [steps[1] - 1 for steps in began if len(steps) > 1]
    return min(later) if later else len(case.ours.rows)


def _of_steps_before(wrong: Wrong, case: Case) -> str:
    """Tell a gradient that still has the one of the step before in it."""
    if not wrong.tensor.startswith("gradient of ") or wrong.step != 2:
        return ""
    one = case.one.tensors(2, "gradients")[0].get(wrong.tensor)
    before = dict(case.ours.whole(wrong.tensor, case.ours.tensors(1, "gradients")))
    for rank, now in case.ours.whole(wrong.tensor, case.ours.tensors(2, "gradients")):
        if one is None or rank not in before or not now.shape == one.shape == before[rank].shape:
            continue
        if not exchange.is_near(now, one) and exchange.ratio(now - one, before[rank]) > 0:
            return factors.NOT_ZEROED
    return ""


def _of_updates(wrong: Wrong, case: Case) -> str:
    """Tell an update that did not take place, or not on every rank, from one that is another."""
    if not wrong.tensor.startswith("parameter ") or wrong.step > 2:
        return ""
    kind, label = ("start", "initial ") if wrong.step == 1 else ("parameters", "parameter ")
    before = case.ours.tensors(1, kind)
    after = case.ours.tensors(wrong.step, "parameters")
    name = bare(wrong.tensor)
    stale = [rank for rank, mine in enumerate(after) if wrong.tensor in mine and label + name in before[rank]
             and bool((mine[wrong.tensor] == before[rank][label + name]).all())]  # fmt: skip
    if stale:
        return factors.NOT_UPDATED % ", ".join("rank %d" % rank for rank in stale)
    mine = [one[wrong.tensor] for one in after if wrong.tensor in one]
    if len(mine) > 1 and any(one.shape == mine[0].shape and bool((one != mine[0]).any()) for one in mine[1:]):
        return factors.UPDATED_APART
    return ""


def _of_states(wrong: Wrong, case: Case) -> str:
    """Tell the state of an optimizer that the ranks do not share."""
    states = [one[wrong.tensor] for one in case.ours.tensors(wrong.step, "states") if wrong.tensor in one]
    if len(states) > 1 and any(bool((one != states[0]).any()) for one in states[1:] if one.shape == states[0].shape):
        return factors.OWN_STATE
    return ""


def _of_passes(wrong: Wrong, case: Case) -> str:
    """Tell a loss that is divided by more backward passes than the ranks make, or by fewer."""
    place = min(wrong.step, len(case.one.rows), len(case.ours.rows)) - 1
    one, ours = case.one.rows[place]["passes"], case.ours.rows[place]["passes"]
    is_their_ratio = one != ours and ours and one and abs(wrong.factor * one / ours - 1) < 1e-2
    return factors.PASSES % (one, ours) if is_their_ratio else ""


def _of_exchange(wrong: Wrong, case: Case) -> str:
    return exchange.of(wrong, case) if case.is_own and wrong.tensor not in ("learning rate", "") else ""


def _of_whole_batch(wrong: Wrong, case: Case) -> str:
    """Tell what in a script looks at the batch as a whole, or at chance."""
    if wrong.factor:
        return _of_scale(wrong, case)
    facts = case.ours.facts[0]
    if _batch_norms(case):
        return factors.BATCH_NORM % _batch_norms(case)[0]
    if facts.get("gathers_without_gradient"):
        return factors.GATHER
    if wrong.step == 1 and not exchange.shares_data(case) and wrong.tensor.startswith("gradient of "):
        return _of_backward(case)
    states = [dict(facts.get("draws", [])).get(wrong.step) for facts in case.ours.facts]
    if any(states):
        return factors.SAME_DRAWS if len(set(states)) == 1 else factors.DRAWS
    return _of_losses(wrong, case)


def _of_scale(wrong: Wrong, case: Case) -> str:
    """Tell a gradient that is scaled as a whole, by no number that is known, where the loss is right."""
    place = min(wrong.step, len(case.one.rows), len(case.ours.rows)) - 1
    one, ours = case.one.rows[place], case.ours.rows[place]
    known = [case.num_ranks**power for power in (-2, -1, -0.5, 0.5, 1, 2)]
    if (
        any(abs(wrong.factor - number) < 0.02 * number for number in known)
        or relative(one["loss"], ours["loss"]) > _ALIKE
    ):
        return ""
    ratios = [ours["norms"][name] / norm for name, norm in one["norms"].items() if norm and name in ours["norms"]]
    is_whole = all(abs(ratio - wrong.factor) < 1e-2 * abs(wrong.factor) for ratio in ratios)
    return factors.SCALED_WHOLE if len(ratios) > 1 and is_whole else ""


def _of_backward(case: Case) -> str:
    """Tell gradients that are wrong behind others that are right, where the forward pass is."""
    if relative(case.one.rows[0]["loss"], case.ours.rows[0]["loss"]) > _ALIKE:
        return ""
    one, ours = case.one.tensors(1, "gradients")[0], case.ours.tensors(1, "gradients")
    for label, wanted in one.items():
        mine = case.ours.whole(label, ours)
        if mine and wanted.any() and all(exchange.is_near(tensor, wanted) for _, tensor in mine):
            return factors.PASSED_BACK % bare(label)
    return ""


def _of_losses(wrong: Wrong, case: Case) -> str:
    """Tell a mean of means by the losses alone, where the ranks' own gradients were not seen."""
    losses = [rank["loss"] for rank in case.ours.rows[0]["ranks"]]
    one = case.one.rows[0]["loss"]
    if wrong.step > 1 or one is None or None in losses or not exchange.shares_data(case):
        return ""
    if relative(one, case.ours.rows[0]["loss"]) <= _ALIKE or not min(losses) < one < max(losses):
        return ""
    samples = {rank["samples"] for rank in case.ours.rows[0]["ranks"]}
    what = "samples" if len(samples) > 1 else "tokens, or other entries of the mean"
    share = (one - losses[1]) / (losses[0] - losses[1])
    weighs = "%.3f : %.3f" % (share, 1 - share) if len(losses) == 2 else "by their numbers"
    return factors.MEAN_OF_MEANS % (what, weighs)


_CAUSES: Tuple[Cause, ...] = (
    _of_learning_rate,
    _of_tensors_there,
    _of_start,
    _of_buffers,
    _of_samples,
    _of_steps_before,
    _of_states,
    _of_updates,
    _of_passes,
    _of_exchange,
    _of_whole_batch,
)
