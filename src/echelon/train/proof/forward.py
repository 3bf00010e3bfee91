"""Where the first forward pass goes another way than on one device: by what each module computed."""

from typing import Any, Dict, List, Optional

import torch

from .case import Case, Wrong, relative, times
from .evidence import Cut

_APART = 1e-3  # relative; the first pass has seen no rounding but its own
Call = Dict[str, Any]
SUM_MISSING = (
    "on each rank it is only a part of the sum: nothing adds up the ranks' parts; an all-reduce is missing after it"
)


def first_apart(case: Case) -> Optional[Wrong]:
    """Return the first module whose output differs, where ranks share one pass over the same samples."""
    one, ours = case.one.rows[0], case.ours.rows[0]
    told = {rank["digest"] for rank in ours["ranks"] if rank["samples"]}
    if len(told) > 1 or relative(one["loss"], ours["loss"]) <= _APART:
        return None
    whole = _by_module(case.one.trail()[0])
    parts = [_by_module(calls) for calls in case.ours.trail()]
    pending: Optional[Wrong] = None
    state, last = "unknown", ""
    for name, call in whole.items():
        last = name
        state, wrong = _judged(name, call, parts, whole, case.num_ranks)
        if state == "apart":
            return pending or wrong
        if state == "part":
            pending = pending or wrong
        elif state == "right":
            pending = None
    return _of_loss(one, ours, last) if state == "right" else pending


def _by_module(calls: List[Call]) -> Dict[str, Call]:
    """Return one call for each module: those of a batch that was cut into micro-batches are joined."""
    found: Dict[str, List[Call]] = {}
    for call in calls:
        found.setdefault(call["module"], []).append(call)
    return {name: {**several[0], "in": _joined(several, "in"), "out": _joined(several, "out")}
            for name, several in found.items()}  # fmt: skip


def _joined(calls: List[Call], key: str) -> Optional[torch.Tensor]:
    tensors = [call[key] for call in calls]
    if any(one is None or one.dim() == 0 for one in tensors):
        return tensors[0] if tensors[0] is not None else None
    if len({one.shape[1:] for one in tensors}) > 1:
        return None
    return torch.cat(tensors) if tensors[0].is_floating_point() or len(tensors) > 1 else tensors[0]


def _judged(name: str, call: Call, parts: List[Dict[str, Call]], whole: Dict[str, Call], num_ranks: int) -> Any:
    """Return whether a module's output is right, a part of a sum, apart, or cannot be compared; and what to say."""
    mine = [part[name] for part in parts if name in part]
    outs = [one["out"] for one in mine if one["out"] is not None]
    wanted = call["out"]
    if not outs or wanted is None or not wanted.is_floating_point():
        return "unknown", None
    if any(out.shape != wanted.shape for out in outs):
        pieces = _whole(outs, wanted)
        if pieces is None:
            return _of_rows(name, [len(out) for out in outs if out.shape[1:] == wanted.shape[1:]], len(wanted))
        outs = [pieces]
    if all(_is_near(out, wanted) for out in outs):
        return "right", None
    total = torch.stack(outs).sum(0)
    label = "output of %s" % name
    if len(outs) == num_ranks and num_ranks > 1 and _is_near(total, wanted):
        return "part", Wrong(1, label, 0.0, "%s differs between the ranks" % label, SUM_MISSING)
    return "apart", _apart(label, call, parts, outs, whole)


def _of_rows(name: str, rows: List[int], wanted: int) -> Any:
    """Tell a module that gets fewer samples, all ranks together: micro-batches that are left out."""
    if not rows or sum(rows) == wanted or wanted in rows or sum(rows) % wanted == 0:
        return "unknown", None
    why = "%s gets %d samples in the first step, but %d on one device" % (name, sum(rows), wanted)
    meaning = "some samples are left out, or passed twice: count the micro-batches that each stage sends and receives"
    return "apart", Wrong(1, "output of %s" % name, 0.0, why, meaning)


def _whole(outs: List[torch.Tensor], wanted: torch.Tensor) -> Optional[torch.Tensor]:
    """Return outputs that are cut, put together; not along the samples, which ranks may have in any order."""
    found = (Cut(dim, 1).joined(outs) for dim in range(1, wanted.dim()))
    return next((one for one in found if one is not None and one.shape == wanted.shape), None)


def _apart(
    label: str, call: Call, parts: List[Dict[str, Call]], outs: List[torch.Tensor], whole: Dict[str, Call]
) -> Wrong:
    wanted, ours = call["out"].double(), outs[0].double()
    difference = float((ours - wanted).norm()) / (float(wanted.norm()) or 1.0)
    why = "%s differs by %.2g of its norm" % (label, difference)
    total = torch.stack(outs).double().sum(0)
    for sum_of in (ours, total):
        count = _times_bias(sum_of - wanted, call["bias"])
        if count:
            meaning = (
                "it contains its bias %s times too often: each rank adds the bias to its part, and the parts "
                "are summed; add the bias once, after the sum" % times(count)
            )
            return Wrong(1, label, 0.0, why, meaning)
    factor = float((ours * wanted).sum()) / (float(wanted.norm()) ** 2 or 1.0)
    is_number = any(abs(factor - number) < _APART * number for number in (len(outs), 1 / len(outs)))
    if _is_near(ours, factor * wanted) and abs(factor - 1) > _APART and is_number:
        why = "%s is %s times as large" % (label, times(factor))
        return Wrong(1, label, factor, why, "it is summed over the ranks more than once, or scaled by their number")
    return Wrong(1, label, 0.0, why, _of_inputs(call, parts, whole))


def _of_inputs(call: Call, parts: List[Dict[str, Call]], whole: Dict[str, Call]) -> str:
    """Say of a wrong output whether what went in was right already."""
    mine = next(part[call["module"]] for part in parts if call["module"] in part)
    given, wanted = mine["in"], call["in"]
    if given is not None and wanted is not None and given.shape == wanted.shape and _is_near(given, wanted):
        return (
            "its input and its weights are right: it computes something else, or its weights are cut at other "
            "places than it uses them (heads; queries, keys and values in one weight)"
        )
    for name, other in ((name, other) for part in parts for name, other in part.items() if name in whole):
        if _is_twin(other["in"], whole[name]["in"]):
            continue
        twin = next((one for one, of_one in whole.items() if _is_twin(other["in"], of_one["in"])), "")
        if twin:
            return (
                "%s gets the input that %s gets on one device: the layers, or the stages of a pipeline, are in "
                "another order, or one is left out" % (name, twin)
            )
    return (
        "its input is already wrong, between this module and the modules before it: check what the ranks send each "
        "other"
    )


def _is_twin(one: Optional[torch.Tensor], other: Optional[torch.Tensor]) -> bool:
    return one is not None and other is not None and one.shape == other.shape and _is_near(one, other)


def _of_loss(one: Any, ours: Any, last: str) -> Wrong:
    ratio = ours["loss"] / one["loss"] if one["loss"] and ours["loss"] else 0.0
    why = "the loss is %.7g, but %.7g on one device, with the same output of %s" % (ours["loss"], one["loss"], last)
    for count in range(2, 65):
        if abs(ratio - count) < 1e-3 * count or abs(ratio * count - 1) < 1e-3:
            meaning = (
                "it is %s times as large: losses of %d micro-batches are %s, but the loss should be their mean" % (
                    times(ratio), count, "added up" if ratio > 1 else "divided by their number more than once")
            )  # fmt: skip
            return Wrong(1, "loss", ratio, why, meaning)
    meaning = (
        "the model computes the same output, but the loss uses something else: the targets belong to other "
        "samples or micro-batches, or the mean is over something else"
    )
    return Wrong(1, "loss", ratio, why, meaning)


def _times_bias(difference: torch.Tensor, bias: Any) -> float:
    """Return how many times a bias a difference is, in every row; 0: it is something else."""
    if bias is None or difference.dim() == 0 or difference.size(-1) != bias.numel() or not bias.any():
        return 0.0
    bias = bias.double().flatten()
    rows = difference.reshape(-1, bias.numel())
    count = float((rows.mean(0) * bias).sum() / (bias * bias).sum())
    return count if _is_near(rows, (count * bias).expand_as(rows)) else 0.0


def _is_near(one: torch.Tensor, other: torch.Tensor) -> bool:
    one, other = one.double(), other.double()
    return float((one - other).norm()) <= _APART * max(float(other.norm()), 1e-12)
