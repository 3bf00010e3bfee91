"""What ranks made of their own gradients when they exchanged them: a mean, a sum, nothing, or something else.

Each rank's own gradients are known of the first steps, so what the optimizer used is a combination of them, and what
one device has is one too: both are found by least squares, over all tensors or one.
"""

from typing import List, NamedTuple, Optional

import torch

from . import factors
from .case import Case, Wrong, times
from .evidence import Tensors, bare

_NEAR = 1e-3  # relative
_EVEN = 1e-2  # between weights that are one
MOST_NUMBERS = 4096  # of each tensor that are looked at


class Weights(NamedTuple):
    """A combination of the ranks' own gradients."""

    each: List[float]
    is_exact: bool

    @property
    def are_even(self) -> bool:
        return max(self.each) - min(self.each) <= _EVEN * max(abs(one) for one in self.each)


def of(wrong: Wrong, case: Case) -> str:
    """Return what the exchange of gradients shows of a cause; empty where it shows nothing."""
    name = bare(wrong.tensor)
    mismatch = _mismatch(case) or _of_groups(case, name)
    if mismatch:
        return mismatch
    step = wrong.step if wrong.step <= 2 else 1
    one = case.one.tensors(step, "gradients")[0]
    ours = case.ours.tensors(step, "gradients")
    if case.ours.about.get("num_sharded"):
        return _of_shards(one, ours[0], case)
    local = case.ours.local(step)
    if wrong.step > 2:
        return ""
    if not all(local) or name not in local[0]:
        return _of_unseen(name, ours)
    if case.ours.cuts and abs(wrong.factor * case.num_ranks - 1) < _EVEN:
        return factors.SHARE % case.num_ranks
    return _of_apart(name, one, ours, local, case) or _of_mean(one, ours, local, case)


def is_near(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Say whether two tensors are the same but for rounding."""
    one, other = one.double(), other.double()
    return float((one - other).norm()) <= _NEAR * max(float(other.norm()), 1e-30)


def is_same(one: torch.Tensor, other: Optional[torch.Tensor]) -> bool:
    """Say whether two tensors are equal to the bit."""
    return other is not None and one.shape == other.shape and torch.equal(one, other)


def _mismatch(case: Case) -> str:
    """Tell collectives in which ranks gave different tensors to one sum."""
    sequences = [[(entry[1], entry[2]) for entry in facts.get("collectives", [])] for facts in case.ours.facts]
    for met in zip(*sequences):  # noqa: B905
        labels = {label for _, label in met if label}
        if len(labels) > 1:
            return factors.PAIRED % " and ".join("%s on rank %d" % (label, rank) for rank, (_, label) in enumerate(met))
    return ""


def _of_groups(case: Case, name: str) -> str:
    """Tell gradients that are summed over fewer ranks than there are, though each rank has other samples."""
    if not shares_data(case):
        return ""
    entries = [entry for facts in case.ours.facts for entry in facts.get("collectives", [])]
    sizes = {entry[4] for entry in entries if entry[2] == "gradient of " + name}
    return factors.SMALL_GROUP % (max(sizes), case.num_ranks) if sizes and max(sizes) < case.num_ranks else ""


def shares_data(case: Case) -> bool:
    """Say whether each rank has a whole model, and samples of its own."""
    told = {rank["digest"] for rank in case.ours.rows[0]["ranks"]}
    return len(told) > 1 and not case.ours.cuts and all(rank["samples"] for rank in case.ours.rows[0]["ranks"])


def _of_apart(name: str, one: Tensors, ours: List[Tensors], local: List[Tensors], case: Case) -> str:
    """Tell ranks whose gradients differ after the exchange, which should be one."""
    label = "gradient of " + name
    mine = [tensors.get(label) for tensors in ours]
    if any(tensor is None for tensor in mine) or name in case.ours.cuts:
        return _of_summed_pieces(name, one, ours, case)
    given = [tensor for tensor in mine if tensor is not None]
    if all(is_near(tensor, given[0]) for tensor in given[1:]):
        return ""
    wanted = one.get(label)
    if wanted is not None:
        right = [rank for rank, tensor in enumerate(given) if is_near(tensor, wanted)]
        if right:
            return factors.RIGHT_ON % ", ".join("rank %d" % rank for rank in right)
        if is_near(torch.stack(given).sum(0), wanted) and not shares_data(case):
            return factors.PARTS_OF_SUM
    if all(_is_multiple(tensor, own.get(name)) for tensor, own in zip(given, local)):  # noqa: B905
        return factors.ALONE if not _others_agree(label, ours) else factors.ALONE_AMONG_OTHERS % name
    if all(ratio(tensor, given[0]) for tensor in given):
        return factors.SCALED_APART
    return factors.PARTLY


def _of_unseen(name: str, ours: List[Tensors]) -> str:
    """Tell ranks that do not exchange gradients, where their own were not seen: those of a shard over one rank."""
    given = [mine["gradient of " + name] for mine in ours if "gradient of " + name in mine]
    is_apart = len(given) > 1 and not all(is_near(tensor, given[0]) for tensor in given[1:])
    return factors.ALONE if is_apart else ""


def _others_agree(label: str, ours: List[Tensors]) -> bool:
    """Say whether the ranks have other gradients in common."""
    shared = [other for other in ours[0] if other != label and all(other in tensors for tensors in ours)]
    first, rest = ours[0], ours[1:]
    return any(first[other].any() and all(is_near(mine[other], first[other]) for mine in rest) for other in shared)


def _of_summed_pieces(name: str, one: Tensors, ours: List[Tensors], case: Case) -> str:
    """Tell a tensor that is cut, or is on some ranks alone."""
    label = "gradient of " + name
    wanted = one.get(label)
    whole = case.ours.whole(label, ours)
    if wanted is None or not whole or whole[0][1].shape != wanted.shape:
        return ""
    factor = ratio(whole[0][1], wanted)
    return factors.CUT_FACTOR % times(factor) if factor and abs(factor - 1) > _NEAR else ""


def _of_mean(one: Tensors, ours: List[Tensors], local: List[Tensors], case: Case) -> str:
    """Tell what was made of the ranks' gradients, and what one device makes of them."""
    used = _weights(ours[0], local, one)
    wanted = _weights(one, local, one)
    if used is not None and used.is_exact and not used.are_even:
        return factors.SCALED_BEFORE % ", ".join(times(one) for one in used.each)
    if wanted is None or not wanted.is_exact:
        if used is not None and used.is_exact:
            return ""
        return factors.NOT_OF_RANKS if used is not None else ""
    if not wanted.are_even:
        samples = _rows(case)
        is_of_samples = len(set(samples)) > 1 and all(
            abs(weight / sum(wanted.each) - number / sum(samples)) < _EVEN
            for weight, number in zip(wanted.each, samples)  # noqa: B905
        )
        shown = " : ".join(times(one / sum(wanted.each)) for one in wanted.each)
        what = "samples" if is_of_samples else "tokens, or other entries of the mean"
        return factors.MEAN_OF_MEANS % (what, shown)
    if used is not None and used.is_exact:
        return _of_even(sum(used.each), sum(wanted.each), case.num_ranks)
    return factors.NOT_OF_RANKS


def _rows(case: Case) -> List[int]:
    """Return how many samples each rank gives its model: of a batch that all of them draw it is a part."""
    given = [next((call["in"] for call in calls if call["in"] is not None), None) for calls in case.ours.trail()]
    sizes = [0 if one is None or not one.dim() else int(one.size(0)) for one in given]
    drawn = [int(rank["samples"]) for rank in case.ours.rows[0]["ranks"]]
    return sizes if len(set(drawn)) == 1 and len(set(sizes)) > 1 else drawn


def _of_even(used: float, wanted: float, count: int) -> str:
    """Tell a factor that is in the exchange from one that is in each rank's own loss."""
    in_exchange, in_loss = used, 1 / wanted if wanted else 0.0
    if abs(in_exchange - count) < _EVEN * count and abs(in_loss - 1) < _EVEN:
        return factors.of_own(float(count), count)
    if abs(in_exchange * count - 1) < _EVEN and abs(in_loss - 1) < _EVEN:
        return factors.DIVIDED_AFTER % count
    return factors.of_loss(in_loss * in_exchange, count)


def _weights(target: Tensors, local: List[Tensors], one: Tensors) -> Optional[Weights]:
    """Return the combination of the ranks' own gradients that comes nearest to a gradient."""
    names = [bare(label) for label in one if label in target]
    names = [name for name in names if all(name in mine and mine[name].shape == one["gradient of " + name].shape
                                           for mine in local)]  # fmt: skip
    if not names:
        return None
    own = torch.stack([torch.cat([_some(mine[name]) for name in names]) for mine in local], 1)
    wanted = torch.cat([_some(target["gradient of " + name]) for name in names])
    found = torch.linalg.lstsq(own, wanted.unsqueeze(1)).solution.flatten()
    is_exact = float((own @ found - wanted).norm()) <= _NEAR * max(float(wanted.norm()), 1e-30)
    return Weights([float(one) for one in found], is_exact)


def _some(tensor: torch.Tensor) -> torch.Tensor:
    flat = tensor.double().flatten()
    return flat[:: max(1, flat.numel() // MOST_NUMBERS)]


def _is_multiple(one: torch.Tensor, other: Optional[torch.Tensor]) -> bool:
    return other is not None and one.shape == other.shape and ratio(one, other) != 0.0


def ratio(one: torch.Tensor, other: torch.Tensor) -> float:
    """Return which multiple of another a tensor is; 0: none."""
    one, other = one.double(), other.double()
    size = float((other * other).sum())
    if one.shape != other.shape or not size:
        return 0.0
    factor = float((one * other).sum()) / size
    return factor if factor and is_near(one, factor * other) else 0.0


def _of_shards(one: Tensors, ours: Tensors, case: Case) -> str:
    """Tell shards that each rank has scaled by a factor of its own: by a norm of what it holds."""
    ratios = []
    for label, wanted in one.items():
        mine = ours.get(label)
        if mine is not None and mine.shape == wanted.shape:
            is_large = wanted.abs() > _NEAR * wanted.abs().max()
            ratios.append((mine[is_large].double() / wanted[is_large].double()).flatten())
    found: List[float] = []
    for ratio in torch.cat(ratios).tolist() if ratios else []:
        if not any(abs(ratio - known) <= _EVEN * abs(known) for known in found):
            found.append(ratio)
            if len(found) > case.num_ranks:
                return ""
    return factors.OWN_NORM % ", ".join(times(ratio) for ratio in sorted(found)) if len(found) > 1 else ""
