"""Why two trainings differ: the causes are told apart by the actions of the ranks, never by the text of the script."""

from collections.abc import Callable, Sequence

from echelon.orders.records import BUFFER, GRADIENT, INITIAL, PARAMETER
from echelon.train.check.factors import meaning
from echelon.trials.proof import exchange, factors
from echelon.trials.proof.evidence import (
    HAS_SHAPE,
    NOT_THERE,
    FirstDifference,
    Recordings,
    bare,
    copies,
    on_ranks,
    relative,
)
from echelon.trials.proof.findings import digest
from echelon.trials.proof.tensors import Tensor, is_near, is_same, multiple

_ALIKE = 1e-5  # relative: numbers that several ranks have of one thing
Cause = Callable[[FirstDifference, Recordings], str]


def of(difference: FirstDifference, case: Recordings) -> str:
    """Return the likeliest cause of a difference."""
    for cause in _CAUSES:
        text = cause(difference, case)
        if text:
            return text
    return (factors.of_own if case.is_own else meaning)(difference.factor, case.num_ranks)


def _of_learning_rate(difference: FirstDifference, case: Recordings) -> str:
    if difference.tensor != "learning rate":
        return ""
    of_ranks = [[row["learning_rates"] for row in rows] for rows in case.several.by_rank]
    if any(rates != of_ranks[0][: len(rates)] for rates in of_ranks[1:]):
        return factors.OWN_LEARNING_RATE
    oracle = [row["learning_rate"] for row in case.oracle.rows]
    several = [row["learning_rate"] for row in case.several.rows]
    if _is_faster(several, oracle, case.num_ranks):
        return factors.SCHEDULE_TOO_FAST % case.num_ranks
    if _is_faster(oracle, several, case.num_ranks):
        return factors.SCHEDULE_TOO_SLOW % case.num_ranks
    return factors.of_learning_rate(difference.factor, case.num_ranks)


def _is_faster(fast: list[float], slow: list[float], times: int) -> bool:
    """Say whether one schedule takes every N-th step of another."""
    steps = slow[::times][: len(fast)]
    return len(set(steps)) > 1 and all(relative(*rates) < _ALIKE for rates in zip(steps, fast, strict=False))


def _of_tensors_there(difference: FirstDifference, case: Recordings) -> str:
    """Return why one of the two runs has no such tensor: it has no gradient, or the model is another one."""
    if HAS_SHAPE in difference.why:
        return factors.OTHER_MODEL
    if not difference.why.endswith(NOT_THERE):
        return ""
    label = INITIAL + bare(difference.tensor)
    starts = case.several.tensors(1, "start")
    without = [rank for rank, start in enumerate(starts) if label not in start]
    if without and len(without) < len(starts) and exchange.shares_data(case):
        return factors.NOT_TRAINED_ON % on_ranks(without)
    is_in_oracle, is_in_several = bool(copies(label, case.oracle.tensors(1, "start"))), len(without) < len(starts)
    if is_in_oracle and not is_in_several:
        return factors.NOT_TRAINED if "is here" not in difference.why else factors.OTHER_MODEL
    has_both = is_in_oracle and is_in_several
    return factors.NO_GRADIENT if difference.tensor.startswith(GRADIENT) and has_both else factors.OTHER_MODEL


def _of_start(difference: FirstDifference, case: Recordings) -> str:
    """Return why the first weights differ: between the ranks, or all ranks have those of another model."""
    if not difference.tensor.startswith(INITIAL):
        return ""
    starts = copies(difference.tensor, case.several.tensors(1, "start"))
    if bare(difference.tensor) in case.several.cuts and len(starts) > 1 and starts[0].shape == starts[1].shape:
        return factors.ALIKE_PIECES if is_same(starts[0], starts[1]) else factors.OTHER_START
    oracle = case.oracle.tensors(1, "start")[0]
    for label, tensor in oracle.items():
        if label != difference.tensor and tensor.dim() > 1 and any(is_same(start, tensor) for start in starts):
            return factors.OTHER_LAYER % bare(label)
    is_on_some = any(is_same(start, oracle.get(difference.tensor)) for start in starts)
    return factors.START_OF_ONE_RANK if is_on_some else factors.OTHER_START


def _of_buffers(difference: FirstDifference, case: Recordings) -> str:
    """Return why a buffer or a frozen weight differs: statistics of a rank's samples, or no rank sends it."""
    label = difference.tensor
    if not label.startswith((BUFFER, PARAMETER)) or difference.step > len(case.several.rows):
        return ""
    now, before = case.several.tensors(difference.step, "others"), case.several.tensors(1, "others")
    if not copies(label, now):
        return ""
    if any(label.startswith(BUFFER + name) for name in _batch_norms(case)):
        return _of_batch_norm(bare(label[len(BUFFER) :]).rpartition(".")[0], case)
    stale = [rank for rank, tensors in enumerate(now) if label in tensors and difference.step > 1
             and is_same(tensors[label], before[rank].get(label))]  # fmt: skip
    if stale and INITIAL + bare(label) in case.oracle.tensors(1, "start")[0]:
        return factors.NOT_UPDATED % on_ranks(stale)
    return factors.OWN_BUFFER if _differ(copies(label, now)) else factors.OTHER_BUFFER


def _differ(tensors: Sequence[Tensor]) -> bool:
    """Say whether a rank has other numbers than the first one, in a tensor of the same shape."""
    return any(tensor.shape == tensors[0].shape and not is_same(tensor, tensors[0]) for tensor in tensors)


def _batch_norms(case: Recordings) -> list[str]:
    names: list[str] = case.several.facts[0].get("batch_norms", [])
    return [] if case.is_synced else names


def _of_batch_norm(name: str, case: Recordings) -> str:
    return factors.OF_BATCH_NORM % name + (factors.SYNCED_BY_SCRIPT if case.is_own else factors.OTHER_NORM)


def _of_samples(difference: FirstDifference, case: Recordings) -> str:
    """Return why the ranks trained on other samples than one device."""
    oracle, several = case.rows(difference.step)
    if not case.is_own or not any(rank["samples"] for rank in several["ranks"]) or digest(oracle) == digest(several):
        return ""
    return _of_epochs(case) or _of_drawn_twice(case) or factors.OTHER_SAMPLES


def _of_epochs(case: Recordings) -> str:
    for loaders in zip(*(facts.get("loaders", []) for facts in case.several.facts), strict=False):
        of_ranks = [loader["epochs"] for loader in loaders]
        if any(epochs != of_ranks[0][: len(epochs)] for epochs in of_ranks[1:]):
            shown = ", ".join(f"{epochs[:3]} on rank {rank}" for rank, epochs in enumerate(of_ranks))
            return factors.OTHER_EPOCHS % shown
        seeds = [loader["deals"]["seed"] if loader["deals"] else 0 for loader in loaders]
        if len(set(seeds)) > 1:
            return factors.OTHER_SEEDS % ", ".join(map(str, seeds))
    return ""


def _of_drawn_twice(case: Recordings) -> str:
    """Detect samples that several ranks draw in one pass: more of them than make the ranks' numbers even."""
    steps = _of_first_pass(case)
    drawn = [{sample for row in rows[:steps] for sample in row["drawn"]} for rows in case.several.by_rank]
    total = sum(map(len, drawn))
    twice = total - len(set().union(*drawn))
    return factors.DRAWN_TWICE % (twice, total) if twice > case.num_ranks - 1 else ""


def _of_first_pass(case: Recordings) -> int:
    """Return the step with which the first pass over the data ends."""
    loaders = case.several.facts[0].get("loaders", [])
    later = [loader["began"][1] - 1 for loader in loaders if loader["is_for_training"] and len(loader["began"]) > 1]
    return min(later, default=len(case.several.rows))


def _of_steps_before(difference: FirstDifference, case: Recordings) -> str:
    """Detect a gradient that still contains the gradient of the step before."""
    label = difference.tensor
    if not label.startswith(GRADIENT) or difference.step != 2:
        return ""
    wanted = case.oracle.tensors(2, "gradients")[0].get(label)
    before = dict(case.several.whole(label, case.several.tensors(1, "gradients")))
    for rank, now in case.several.whole(label, case.several.tensors(2, "gradients")):
        if wanted is None or rank not in before or not now.shape == wanted.shape == before[rank].shape:
            continue
        if not is_near(now, wanted) and multiple(now - wanted, before[rank]) > 0:
            return factors.NOT_ZEROED
    return ""


def _of_updates(difference: FirstDifference, case: Recordings) -> str:
    """Detect a parameter that ranks do not update, or update differently."""
    label = difference.tensor
    if not label.startswith(PARAMETER) or difference.step > 2:
        return ""
    kind, prefix = ("start", INITIAL) if difference.step == 1 else ("parameters", PARAMETER)
    before, after = case.several.tensors(1, kind), case.several.tensors(difference.step, "parameters")
    stale = [rank for rank, tensors in enumerate(after)
             if label in tensors and is_same(tensors[label], before[rank].get(prefix + bare(label)))]  # fmt: skip
    if stale:
        return factors.NOT_UPDATED % on_ranks(stale)
    return factors.UPDATED_APART if _differ(copies(label, after)) else ""


def _of_states(difference: FirstDifference, case: Recordings) -> str:
    """Detect ranks whose optimizers have different states."""
    states = copies(difference.tensor, case.several.tensors(difference.step, "states"))
    return factors.OWN_STATE if _differ(states) else ""


def _of_passes(difference: FirstDifference, case: Recordings) -> str:
    """Detect a loss that is divided by another number of backward passes than the ranks make."""
    oracle, several = (row["passes"] for row in case.rows(difference.step))
    is_ratio = oracle != several and several and oracle and abs(difference.factor * oracle / several - 1) < 1e-2
    return factors.PASSES % (oracle, several) if is_ratio else ""


def _of_exchange(difference: FirstDifference, case: Recordings) -> str:
    is_of_tensor = difference.tensor not in ("learning rate", "")
    return exchange.of(difference, case) if case.is_own and is_of_tensor else ""


def _of_whole_batch(difference: FirstDifference, case: Recordings) -> str:
    """Return which part of a script uses the whole batch, or random numbers."""
    if difference.factor:
        return _of_scale(difference, case)
    facts = case.several.facts[0]
    if _batch_norms(case):
        return _of_batch_norm(_batch_norms(case)[0], case)
    if facts.get("gathers_without_gradient"):
        return factors.GATHER
    if difference.step == 1 and not exchange.shares_data(case) and difference.tensor.startswith(GRADIENT):
        return _of_backward(case)
    draws = {dict(facts.get("draws", [])).get(difference.step) for facts in case.several.facts}
    if any(draws):
        return factors.SAME_DRAWS if len(draws) == 1 else factors.DRAWS
    return _of_losses(difference, case)


def _of_scale(difference: FirstDifference, case: Recordings) -> str:
    """Detect gradients that are all scaled by one number of no known meaning, though the loss is right."""
    oracle, several = case.rows(difference.step)
    known = [case.num_ranks**power for power in (-2, -1, -0.5, 0.5, 1, 2)]
    is_known = any(abs(difference.factor - number) < 0.02 * number for number in known)
    if is_known or relative(oracle["loss"], several["loss"]) > _ALIKE:
        return ""
    norms = several["norms"]
    ratios = [norms[name] / norm for name, norm in oracle["norms"].items() if norm and name in norms]
    is_whole = all(abs(ratio - difference.factor) < 1e-2 * abs(difference.factor) for ratio in ratios)
    return factors.SCALED_WHOLE if len(ratios) > 1 and is_whole else ""


def _of_backward(case: Recordings) -> str:
    """Return the last layer whose gradient is right, where the forward pass is right and the backward pass is not."""
    if relative(case.oracle.rows[0]["loss"], case.several.rows[0]["loss"]) > _ALIKE:
        return ""
    several = case.several.tensors(1, "gradients")
    for label, wanted in case.oracle.tensors(1, "gradients")[0].items():
        gradients = case.several.whole(label, several)
        if gradients and wanted.any() and all(is_near(gradient, wanted) for _, gradient in gradients):
            return factors.PASSED_BACK % bare(label)
    return ""


def _of_losses(difference: FirstDifference, case: Recordings) -> str:
    """Return a mean of means by the losses alone, where the gradients of each rank are not known."""
    losses = [rank["loss"] for rank in case.several.rows[0]["ranks"]]
    loss = case.oracle.rows[0]["loss"]
    if difference.step > 1 or loss is None or None in losses or not exchange.shares_data(case):
        return ""
    if relative(loss, case.several.rows[0]["loss"]) <= _ALIKE or not min(losses) < loss < max(losses):
        return ""
    samples = {rank["samples"] for rank in case.several.rows[0]["ranks"]}
    share = (loss - losses[1]) / (losses[0] - losses[1])
    weights = f"{share:.3f} : {1 - share:.3f}" if len(losses) == 2 else "by their numbers"
    return factors.MEAN_OF_MEANS % (factors.SAMPLES if len(samples) > 1 else factors.ENTRIES, weights)


_CAUSES: tuple[Cause, ...] = (
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
