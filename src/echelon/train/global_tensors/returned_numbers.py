"""Numbers that a model returns beside its loss: counts of hits, sums, the number of samples.

One rank's number does not show whether it is a sum over samples, a mean, or a constant. So in the first call a copy of
the model computes two parts of this rank's samples, and the two numbers show the kind: the parts of a sum add up. The
ranks agree on a kind that fits the numbers of all ranks.
"""

import copy
import math
import weakref
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import nn

from ...pytorch import internals
from ..scaling_error import ScalingError
from ..wire import messages
from . import kept_tensors
from .tensors import GlobalTensor, Partial, Sharded, map_entries


class ModelCall(NamedTuple):
    """A model that was called, and how a copy of it computes some of this rank's rows."""

    module: nn.Module
    lead: Sharded
    compute: Callable[[nn.Module, int, int], Any]
    """A function that computes some rows; its arguments are the copy, the first row and the number of rows."""
    arguments: tuple[object, ...]
    say: Callable[[str], None]
    fits: dict[int, set[str]] | None = None
    """What the trial of this call has shown of the numbers among its outputs, by their place."""

    @property
    def num_rows(self) -> int:
        """The number of this rank's rows; 0 for a placeholder."""
        return self.lead.local.size(self.lead.dim_of_rows) if self.lead.rows[self.lead.world.rank] else 0

    @property
    def num_first(self) -> int:
        """The number of rows in the first part."""
        return max(1, self.num_rows // 3)


def of_two(call: ModelCall) -> tuple[object, object] | None:
    """Return the outputs for two parts; None for less than two rows, or if the model can compute no part of a batch."""
    if call.num_rows < 2:
        return None
    try:
        refusing_copies = {id(tensor): tensor for tensor in kept_tensors.held(call.module)}
        twin = copy.deepcopy(call.module, refusing_copies)
        for submodule in twin.modules():
            for hooks in internals.hooks_of(submodule):
                hooks.clear()
        with torch.no_grad():
            first = call.compute(twin, 0, call.num_first)
            return first, call.compute(twin, call.num_first, call.num_rows - call.num_first)
    except Exception:  # noqa: BLE001  (a copy of a script's model may raise anything)
        return None


_TOLERANCE = 1e-4
_SAME, _SUM, _MEAN = "same", "sum", "mean"
_Kinds = dict[int, str]
_known: "weakref.WeakKeyDictionary[nn.Module, dict[Any, _Kinds]]" = weakref.WeakKeyDictionary()
"""The kinds of a model's numbers by their place, for each way in which it was called: see `_way`."""


def of_all(result: object, local: object, call: ModelCall) -> object:
    """Return a model's result with the numbers of one device; `local` is the result that this rank has computed."""
    leaves, own = leaves_of(result), leaves_of(local)
    means = [place for place, one in enumerate(leaves) if isinstance(one, Partial) and not one.dim()]
    places = [place for place, one in enumerate(leaves) if _is_number(one)]
    known = _known.setdefault(call.module, {}).setdefault(_way(call.module, call.arguments, result), {})
    is_known = bool(call.fits) or bool(known)
    if (not places and len(means) < 2 and not is_known) or len(leaves) != len(own):
        return result  # a loss alone is a mean, unless the trial of the model has shown a sum
    kinds = _kinds({place: own[place] for place in sorted(places + means)}, set(means), call, known)
    changed = iter([_whole(leaf, own[place], kinds.get(place, ""), call.lead) for place, leaf in enumerate(leaves)])
    return _with_leaves(result, changed)


def as_known(result: object, local: object, module: nn.Module, arguments: object, lead: Sharded) -> object:
    """Return a model's result with the numbers of one device, by the kinds that earlier calls have shown."""
    kinds = _known.get(module, {}).get(_way(module, arguments, result), {})
    leaves, own = leaves_of(result), leaves_of(local)
    if not kinds or len(leaves) != len(own):
        return result
    changed = iter([_whole(leaf, own[place], kinds.get(place, ""), lead) for place, leaf in enumerate(leaves)])
    return _with_leaves(result, changed)


def _way(module: nn.Module, arguments: object, result: object) -> tuple[object, ...]:
    """Return how a model was called: another mode, another word or switch, another structure, other numbers."""
    words = tuple((at, one) for at, one in enumerate(leaves_of(arguments)) if isinstance(one, (str, bool)))
    return module.training, words, _structure(result)


def _structure(value: object) -> object:
    if isinstance(value, dict):
        return tuple((str(name), _structure(one)) for name, one in value.items())
    if isinstance(value, (tuple, list)):
        return tuple(_structure(one) for one in value)
    return _is_number(value), isinstance(value, torch.Tensor) and value.dim() > 0


def _is_number(leaf: Any) -> bool:
    is_tensor = isinstance(leaf, torch.Tensor) and not isinstance(leaf, (GlobalTensor, nn.Parameter))
    if is_tensor:
        return leaf.numel() == 1 and not leaf.is_floating_point() and not leaf.is_complex()
    return isinstance(leaf, (int, float)) and not isinstance(leaf, bool)


def _whole(leaf: object, own: Any, kind: str, lead: Sharded) -> object:
    fraction = lead.rows[lead.world.rank] / sum(lead.rows)
    if kind in ("", _SAME) or (isinstance(leaf, Partial) and kind == _MEAN):
        return leaf
    if isinstance(leaf, Sharded):
        return leaf  # an earlier call gave a number in this place
    if isinstance(own, torch.Tensor) and kind == _SUM:
        counts = own if fraction else own * 0  # a placeholder in place of samples counts for nothing
        return Partial(counts, lead.world, fraction)
    weight = fraction if kind == _MEAN else float(fraction > 0)
    total = torch.tensor(float(own) * weight, dtype=torch.float64)
    total = total.to(lead.world.device)
    dist.all_reduce(total)
    if isinstance(own, torch.Tensor):
        return total.to(own.dtype)
    return type(own)(round(float(total)) if isinstance(own, int) else float(total))


def _kinds(own: dict[int, Any], means: set[int], call: ModelCall, known: _Kinds) -> _Kinds:
    """Return the kind of each number (same, sum or mean), by its place among the outputs; remember it in `known`."""
    own = {place: one for place, one in own.items() if place not in known}
    if not own:
        return known
    kinds = dict(known)
    # detached: float() of a loss with a graph returns the loss of all ranks
    numbers = {place: float(one.detach() if isinstance(one, torch.Tensor) else one) for place, one in own.items()}
    for place, (fits, is_zero) in _agreed(_fitting(numbers, call), numbers, call).items():
        if is_zero:
            kinds[place] = _MEAN if place in means else _SUM  # until a later call shows the kind
            continue
        if not fits or (_SUM in fits and len(fits) > 1):
            kinds[place] = _unknown(place, call, is_mean=place in means)
        else:
            kinds[place] = next(kind for kind in (_SUM, _SAME, _MEAN) if kind in fits)
        known[place] = kinds[place]
    return kinds


def _unknown(place: int, call: ModelCall, *, is_mean: bool) -> str:
    reason = (
        f"{type(call.module).__name__} returns a number (output {place}); echelon cannot tell whether it "
        "is a sum over the samples, their "
        "mean, or the same for all samples"
    )
    if is_mean:
        call.say(f"{reason}; echelon takes the mean of the ranks' numbers")
        return _MEAN
    raise ScalingError(
        reason,
        "return a tensor with an entry for each sample in place of the number, or start one rank: echelon run -n 1 …",
    )


def _fitting(numbers: dict[int, float], call: ModelCall) -> dict[int, set[str]]:
    """Return the possible kinds of each number, by two parts of this rank's samples; all kinds for too few samples."""
    if call.fits:
        return {place: set(call.fits.get(place, ())) for place in numbers}
    if call.num_rows < 2:
        return {place: {_SAME, _SUM, _MEAN} for place in numbers}
    both = of_two(call)
    leaves = [leaves_of(part) for part in both] if both is not None else []
    fitting: dict[int, set[str]] = {}
    for place, number in numbers.items():
        fitting[place] = set()
        if not leaves or any(len(part) <= place for part in leaves):
            continue
        first, rest = (float(part[place]) for part in leaves)
        mean = (first * call.num_first + rest * (call.num_rows - call.num_first)) / call.num_rows
        candidates = {_SUM: first + rest, _MEAN: mean, _SAME: first if first == rest else math.nan}
        for kind, value in candidates.items():
            if math.isclose(value, number, rel_tol=_TOLERANCE, abs_tol=1e-12):
                fitting[place].add(kind)
    return fitting


def _agreed(
    fitting: dict[int, set[str]], numbers: dict[int, float], call: ModelCall
) -> dict[int, tuple[set[str], bool]]:
    """Return the kinds that fit the numbers of all ranks, and whether all these numbers are zero."""
    mine = [(sorted(fits), numbers[place]) for place, fits in fitting.items()]
    answers = messages.gather(mine)
    agreed: dict[int, tuple[set[str], bool]] = {}
    for at, place in enumerate(fitting):
        of_ranks = [one[at] for one, rows in zip(answers, call.lead.rows, strict=False) if rows]
        fits = set.intersection(*(set(kinds) for kinds, _ in of_ranks))
        values = {number for _, number in of_ranks}
        agreed[place] = fits - ({_SAME} if len(values) > 1 else set()), values == {0.0}
    return agreed


def leaves_of(value: object) -> list[Any]:
    """Return the entries of nested tuples, lists and dicts, in order."""
    if isinstance(value, (tuple, list, dict)):
        return [leaf for one in (value.values() if isinstance(value, dict) else value) for leaf in leaves_of(one)]
    return [value]


def _with_leaves(value: object, leaves: Any) -> object:
    if isinstance(value, (tuple, list, dict)):
        entries = value.values() if isinstance(value, dict) else value
        return map_entries(value, [_with_leaves(one, leaves) for one in entries])
    return next(leaves)
