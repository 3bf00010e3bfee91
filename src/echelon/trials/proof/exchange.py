"""What ranks made of their own gradients when they exchanged them: a mean, a sum, nothing, or something else.

The record has each rank's own gradients in the first steps. The gradient that the optimizer used is a combination of
them, and so is the gradient of one device. Least squares find the weights of both combinations.
"""

from collections.abc import Sequence
from typing import NamedTuple

from echelon.orders.records import GRADIENT
from echelon.trials.proof import factors
from echelon.trials.proof.evidence import FirstDifference, Recordings, bare, copies, on_ranks, times
from echelon.trials.proof.tensors import NEAR, Tensor, Tensors, combination, is_near, multiple, total

_EVEN = 1e-2  # relative: the difference of equal weights


class RankWeights(NamedTuple):
    """A combination of the ranks' own gradients."""

    of_ranks: list[float]
    is_exact: bool

    @property
    def are_even(self) -> bool:
        return max(self.of_ranks) - min(self.of_ranks) <= _EVEN * max(map(abs, self.of_ranks))

    @property
    def total(self) -> float:
        return sum(self.of_ranks)


def of(difference: FirstDifference, case: Recordings) -> str:
    """Return the cause that the exchange of gradients shows; empty where it shows nothing."""
    name = bare(difference.tensor)
    mismatch = _mismatch(case) or _of_groups(case, name)
    if mismatch:
        return mismatch
    step = difference.step if difference.step <= 2 else 1
    oracle = case.oracle.tensors(step, "gradients")[0]
    several = case.several.tensors(step, "gradients")
    if case.several.about.get("num_sharded"):
        return _of_shards(oracle, several[0], case)
    local = case.several.local(step)
    if difference.step > 2:
        return ""
    if not all(local) or name not in local[0]:  # a shard over a single rank
        return "" if _are_alike(copies(GRADIENT + name, several)) else factors.ALONE
    if case.several.cuts and abs(difference.factor * case.num_ranks - 1) < _EVEN:
        return factors.SHARE % case.num_ranks
    return _of_apart(name, oracle, several, local, case) or _of_mean(oracle, several, local, case)


def _mismatch(case: Recordings) -> str:
    """Return a collective in which ranks give different tensors to one sum."""
    sequences = [[label for label, _ in facts.get("collectives", [])] for facts in case.several.facts]
    for labels in zip(*sequences, strict=False):
        if len(set(labels) - {""}) > 1:
            return factors.PAIRED % " and ".join(f"{label} on rank {rank}" for rank, label in enumerate(labels))
    return ""


def _of_groups(case: Recordings, name: str) -> str:
    """Detect that only some of the ranks sum their gradients, though each rank has other samples."""
    if not shares_data(case):
        return ""
    collectives = [entry for facts in case.several.facts for entry in facts.get("collectives", [])]
    num_ranks = max((size for label, size in collectives if label == GRADIENT + name), default=case.num_ranks)
    return factors.SMALL_GROUP % (num_ranks, case.num_ranks) if num_ranks < case.num_ranks else ""


def shares_data(case: Recordings) -> bool:
    """Say whether each rank has a whole model, and samples of its own."""
    ranks = case.several.rows[0]["ranks"]
    has_own = len({rank["digest"] for rank in ranks}) > 1 and all(rank["samples"] for rank in ranks)
    return has_own and not case.several.cuts


def _of_apart(name: str, oracle: Tensors, several: list[Tensors], local: list[Tensors], case: Recordings) -> str:
    """Return why ranks have different gradients after the exchange."""
    label = GRADIENT + name
    gradients, wanted = copies(label, several), oracle.get(label)
    if len(gradients) < len(several) or name in case.several.cuts:
        return _of_summed_pieces(wanted, case.several.whole(label, several))
    if _are_alike(gradients):
        return ""
    if wanted is not None:
        right = [rank for rank, gradient in enumerate(gradients) if is_near(gradient, wanted)]
        if right:
            return factors.RIGHT_ON % on_ranks(right)
        if is_near(total(gradients), wanted) and not shares_data(case):
            return factors.PARTS_OF_SUM
    own = copies(name, local)
    if len(own) == len(gradients) and all(map(multiple, gradients, own)):
        return factors.ALONE if not _others_agree(label, several) else factors.ALONE_AMONG_OTHERS % name
    return factors.SCALED_APART if all(multiple(gradient, gradients[0]) for gradient in gradients) else factors.PARTLY


def _are_alike(tensors: Sequence[Tensor]) -> bool:
    return all(is_near(tensor, tensors[0]) for tensor in tensors[1:])


def _others_agree(label: str, several: list[Tensors]) -> bool:
    """Say whether the ranks have other gradients in common."""
    others = [copies(other, several) for other in several[0] if other != label]
    return any(len(tensors) == len(several) and tensors[0].any() and _are_alike(tensors) for tensors in others)


def _of_summed_pieces(wanted: Tensor | None, whole: list[tuple[int, Tensor]]) -> str:
    """Detect a scaled gradient of a tensor that is cut, or that only some ranks have."""
    factor = multiple(whole[0][1], wanted) if wanted is not None and whole else 0.0
    return factors.CUT_FACTOR % times(factor) if factor and abs(factor - 1) > NEAR else ""


def _of_mean(oracle: Tensors, several: list[Tensors], local: list[Tensors], case: Recordings) -> str:
    """Return how the ranks combine their gradients, where one device combines them otherwise."""
    used, wanted = _weights(several[0], local, oracle), _weights(oracle, local, oracle)
    if used is not None and used.is_exact and not used.are_even:
        return factors.SCALED_BEFORE % ", ".join(map(times, used.of_ranks))
    if wanted is None or not wanted.is_exact:
        return factors.NOT_OF_RANKS if used is not None and not used.is_exact else ""
    if not wanted.are_even:
        samples = _rows(case)
        shares = [weight / wanted.total for weight in wanted.of_ranks]
        is_of_samples = len(set(samples)) > 1 and all(
            abs(share - number / sum(samples)) < _EVEN for share, number in zip(shares, samples, strict=True)
        )
        unit = factors.SAMPLES if is_of_samples else factors.ENTRIES
        return factors.MEAN_OF_MEANS % (unit, " : ".join(map(times, shares)))
    if used is not None and used.is_exact:
        return _of_even(used.total, wanted.total, case.num_ranks)
    return factors.NOT_OF_RANKS


def _rows(case: Recordings) -> list[int]:
    """Return how many samples each rank gives its model: of a batch that all of them draw it is a part."""
    traces = case.several.activation_traces()
    inputs = [next((call["in"] for call in calls if call["in"] is not None), None) for calls in traces]
    sizes = [0 if tensor is None or not tensor.dim() else int(tensor.size(0)) for tensor in inputs]
    drawn = [int(rank["samples"]) for rank in case.several.rows[0]["ranks"]]
    return sizes if len(set(drawn)) == 1 and len(set(sizes)) > 1 else drawn


def _of_even(used: float, wanted: float, num_ranks: int) -> str:
    """Return the meaning of a factor: it is in the exchange, or in each rank's own loss."""
    factor_of_loss = 1 / wanted if wanted else 0.0
    if abs(used - num_ranks) < _EVEN * num_ranks and abs(factor_of_loss - 1) < _EVEN:
        return factors.of_own(float(num_ranks), num_ranks)
    if abs(used * num_ranks - 1) < _EVEN and abs(factor_of_loss - 1) < _EVEN:
        return factors.DIVIDED_AFTER % num_ranks
    return factors.of_loss(factor_of_loss * used, num_ranks)


def _weights(target: Tensors, local: list[Tensors], oracle: Tensors) -> RankWeights | None:
    """Return the combination of the ranks' own gradients that comes nearest to a gradient."""
    shapes = {bare(label): wanted.shape for label, wanted in oracle.items() if label in target}
    names = [name for name, shape in shapes.items() if all(name in own and own[name].shape == shape for own in local)]
    if not names:
        return None
    parts = [[own[name] for name in names] for own in local]
    return RankWeights(*combination([target[GRADIENT + name] for name in names], parts))


def _of_shards(oracle: Tensors, tensors: Tensors, case: Recordings) -> str:
    """Detect ranks that each scale their shard by another factor: by the norm of the shard."""
    ratios: list[float] = []
    for label, wanted in oracle.items():
        gradient = tensors.get(label)
        if gradient is not None and gradient.shape == wanted.shape:
            is_large = wanted.abs() > NEAR * wanted.abs().max()
            ratios += (gradient[is_large].double() / wanted[is_large].double()).tolist()
    different: list[float] = []
    for ratio in ratios:
        if not any(abs(ratio - known) <= _EVEN * abs(known) for known in different):
            different.append(ratio)
            if len(different) > case.num_ranks:
                return ""
    return factors.OWN_NORM % ", ".join(map(times, sorted(different))) if len(different) > 1 else ""
