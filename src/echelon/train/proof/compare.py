"""Compare recorded trainings and print a JSON verdict: python -m echelon.train.proof.compare ORACLE REORDERED OTHER N

The oracle is one device. The second record is the oracle again, with the samples of every batch in another order: how
far it strays is what rounding does to this script, and the bound for the third.
"""

import json
import statistics
import sys
from typing import Any, Dict, Iterator, List, Optional, Tuple

import torch

from . import causes, clock, findings, forward
from .case import HAS_SHAPE, NOT_THERE, Case, Row, Wrong, relative, times
from .evidence import Recorded, Tensors

EQUAL, WITHIN, WRONG = "equal to the bit", "equal within rounding", "WRONG"
UNKNOWN = "cannot be compared"
MOST_STRAY = 1e-3  # in the first loss, before anything was trained; half precision strays this far
SLACK = 16.0  # times what rounding did to the oracle; several ranks sum in more than one other order
FLOOR = 2e-6  # relative: some ulps of float32, where another order happened to change nothing
HALF = 1e-4  # a dtype whose last bit is more than this is of half precision
NEGLIGIBLE = 1e-7  # of the whole gradient, an ulp of float32
TELLING = 0.1  # a bound that is wider than this lets anything pass
QUANTITIES = ("learning_rate", "loss", "gradient_norm")


def main(argv: List[str]) -> int:
    """Print the verdict of three records; of one, where the others could not be made, only what it shows by itself."""
    if argv[0] == "--alone":
        alone = findings.alone(Recorded(argv[1], int(argv[2])))
        sys.stdout.write(json.dumps(_told(alone) if alone else {}) + "\n")
        return 0
    one, again, ours = Recorded(argv[0], 1), Recorded(argv[1], 1), Recorded(argv[2], int(argv[3]))
    ours.align(one.tensors(1, "start")[0])
    result = verdict(Case(one, again, ours, int(argv[3]), argv[4:] == ["own"]))
    result["is_wrong"] = result["verdict"] == WRONG
    result["is_unknown"] = result["verdict"] == UNKNOWN
    result["step_seconds"] = {"one": clock.usual(one.seconds), "other": clock.usual(ours.seconds)}
    sys.stdout.write(json.dumps(result) + "\n")
    return 0


def verdict(case: Case) -> Dict[str, Any]:
    """Return the verdict, every step's figures, and where it first went wrong."""
    one, again, ours = case.one.rows, case.again.rows, case.ours.rows
    result: Dict[str, Any] = {"verdict": UNKNOWN, "why": "", "hint": "", "meaning": "", "steps": [], "tensors": []}
    stray = relative(one[0]["loss"], again[0]["loss"])
    if not stray <= MOST_STRAY:
        result["why"] = (
            "two runs on one rank differ by %.2g in their first loss: the script draws random data without a "
            "seed" % stray
        )
        result["hint"] = "set a seed at its top: torch.manual_seed(0)"
        return result
    alone = findings.alone(case.ours) if case.is_own else None
    why_not = {} if alone else findings.same_samples(case) or findings.other_samples(case)
    if why_not:
        return {**result, **why_not}
    result["steps"], wrong = _steps(case)
    result["tensors"] = tensors = list(_tensors(case))
    wrong = _first(wrong, next((_of_tensor(row) for row in tensors if not row["difference"] <= row["bound"]), None))
    if wrong is None and len(ours) != len(one):
        why = "one device makes %d steps, but this run makes %d" % (len(one), len(ours))
        wrong = Wrong(min(len(one), len(ours)) + 1, "", 0.0, why)
    found = alone if alone and (wrong is None or alone.step <= wrong.step) else _explained(wrong, case)
    if found is not None:
        return {**result, **_told(found)}
    is_equal = all(row["difference"] == 0.0 for row in tensors) and all(
        row[name]["difference"] == 0.0 for row in result["steps"] for name in QUANTITIES
    )
    telling = [row for row in result["steps"] if max(row[name]["bound"] for name in QUANTITIES) <= TELLING]
    return {**result, "verdict": EQUAL if is_equal else WITHIN, "num_telling": len(telling)}


def _told(wrong: Wrong) -> Dict[str, Any]:
    return {"verdict": WRONG, "first_step": wrong.step, "tensor": wrong.tensor, "factor": wrong.factor,
            "why": wrong.why, "meaning": wrong.meaning}  # fmt: skip


def _explained(wrong: Optional[Wrong], case: Case) -> Optional[Wrong]:
    """Return what is wrong with its cause: where the forward pass shows it, there; where no number does, by itself."""
    if wrong is None:
        return findings.of_words(case) if case.is_own else None
    if case.is_own and wrong.step == 1 and not wrong.tensor.startswith(("initial ", "learning rate", "buffer ")):
        wrong = forward.first_apart(case) or wrong
    return wrong if wrong.meaning else wrong._replace(meaning=causes.of(wrong, case))


def _steps(case: Case) -> Tuple[List[Row], Optional[Wrong]]:
    """Compare what there is of every step: the three numbers, and the norm of each gradient."""
    steps: List[Row] = []
    wrong: Optional[Wrong] = None
    strays = dict.fromkeys(QUANTITIES, 0.0)
    of_norms: Dict[str, float] = {}
    floor = _floor(case, FLOOR)
    for one, again, ours in zip(case.one.rows, case.again.rows, case.ours.rows):  # noqa: B905
        norms = [relative(norm, again["norms"].get(name)) for name, norm in one["norms"].items()]
        common = statistics.median(norms) if norms else 0.0
        figures: Row = {"step": one["step"]}
        for name in QUANTITIES:
            shared = 0.0 if name == "learning_rate" else min(common, 1.0)
            strays[name] = max(strays[name], relative(one[name], again[name]), shared)
            least = FLOOR if name == "learning_rate" else floor
            difference, limit = relative(one[name], ours[name]), least + SLACK * strays[name]
            figures[name] = {"one": one[name], "other": ours[name], "difference": difference, "bound": limit}
            if wrong is None and not difference <= limit:
                wrong = _of_number(name, one, ours)
        steps.append(figures)
        wrong = wrong or _of_rates(one, ours)
        if wrong is None or wrong.step == one["step"]:
            wrong = _of_norms(one, again, ours, of_norms, common, _floor(case, 10 * FLOOR)) or wrong
    return steps, wrong


def _floor(case: Case, floor: float) -> float:
    """Return the least bound: where something was computed in half precision, what that rounds each rank's sums by."""
    eps = max(float(of.facts[0].get("eps", 0.0)) for of in (case.one, case.ours))
    return floor if eps < HALF else max(floor, 2 * eps)


def _of_number(name: str, one: Row, ours: Row) -> Wrong:
    what = name.replace("_", " ")
    if one[name] is None or ours[name] is None or not one[name]:
        return Wrong(one["step"], "", 0.0, "the %s is %s on one device, but %s here" % (what, one[name], ours[name]))
    ratio = ours[name] / one[name]
    why = "the %s is %.7g, but %.7g on one device: %s times as large" % (what, ours[name], one[name], times(ratio))
    return Wrong(one["step"], what, ratio, why)


def _of_rates(one: Row, ours: Row) -> Optional[Wrong]:
    """Return the first learning rate that differs, of whatever group and rank."""
    for rank, row in enumerate(ours["ranks"]):
        for group, (wanted, rate) in enumerate(zip(one["learning_rates"], row["learning_rates"])):  # noqa: B905
            if relative(wanted, rate) > FLOOR:
                where = " of group %d" % group if group else ""
                why = "the learning rate%s is %.7g on rank %d, but %.7g on one device" % (where, rate, rank, wanted)
                return Wrong(one["step"], "learning rate", rate / wanted if wanted else 0.0, why)
    return None


def _of_norms(
    one: Row, again: Row, ours: Row, strays: Dict[str, float], common: float, floor: float
) -> Optional[Wrong]:
    """Return the first gradient whose norm differs, on whatever rank, where not all of it was kept."""
    for name, norm in one["norms"].items():
        strays[name] = max(strays.get(name, 0.0), relative(norm, again["norms"].get(name)), common)
        for rank, other in [(-1, ours["norms"].get(name)), *ours["of_ranks"].get(name, [])]:
            if other is None:
                continue  # it is said of the tensors
            apart = abs(other - (norm or 0.0))
            limit = floor + SLACK * strays[name]
            if not apart <= _negligible(one, common) and not relative(norm, other) <= limit:
                factor = other / norm if other and norm else 0.0
                where = " on rank %d" % rank if rank > 0 else ""
                why = "the norm of the gradient of %s is %s times as large%s" % (name, times(factor), where)
                return Wrong(one["step"], "gradient of " + name, factor, why)
    return None


def _tensors(case: Case) -> Iterator[Row]:
    """Compare all tensors at the steps that were kept."""
    strays: Dict[str, float] = {}
    floor = _floor(case, 10 * FLOOR)
    for step, kind in case.one.kept():
        one, again, ours = (of.tensors(step, kind) for of in (case.one, case.again, case.ours))
        if kind == "others":
            _add_held(case, step, (one[0], again[0]), ours)
        if (one[0] and not again[0]) or not any(ours):
            continue
        found = {label: _apart(tensor, again[0].get(label)) for label, tensor in one[0].items()}
        common = statistics.median(min(value, 1.0) for value in found.values()) if found else 0.0
        negligible = _negligible(case.one.rows[step - 1], common) if kind == "gradients" else 0.0
        for label, tensor in one[0].items():
            strays[label] = max(strays.get(label, 0.0), found[label], common)
            bound = floor + SLACK * strays[label]
            whole = case.ours.whole(label, ours)
            if kind == "others":
                whole = [(rank, other) for rank, other in whole if other.shape == tensor.shape]
                if not whole:
                    continue
            row = {"step": step, "kind": kind, "tensor": label, "tells": bound <= TELLING}
            yield {**row, **_worst(tensor, whole, negligible, bound)}
        yield from _surplus(step, kind, one[0], ours)


def _add_held(case: Case, step: int, whole: Tuple[Tensors, Tensors], ours: List[Tensors]) -> None:
    """Add what ranks use, and leave to others to update, as one device has it; drop what they only hold."""
    for mine, calls in zip(ours, case.ours.trail()):  # noqa: B905
        used = {call["module"] for call in calls}
        for label in [label for label in mine if label not in whole[0] and label.startswith("parameter ")]:
            if label[len("parameter ") :].rpartition(".")[0] not in used:
                del mine[label]
    wanted = {label for mine in ours for label in mine}
    for of, tensors in zip((case.one, case.again), whole):  # noqa: B905
        held = of.tensors(step - 1, "parameters")[0]
        tensors.update((label, held[label]) for label in held if label in wanted)


def _surplus(step: int, kind: str, one: Dict[str, torch.Tensor], ours: List[Dict[str, torch.Tensor]]) -> Iterator[Row]:
    """Yield what is there on several ranks alone."""
    for label in dict.fromkeys(label for mine in ours for label in mine if label not in one):
        if kind != "others" and (kind != "gradients" or any(mine[label].any() for mine in ours if label in mine)):
            yield {"step": step, "kind": kind, "tensor": label, "difference": float("inf"), "bound": 0.0,
                   "factor": 0.0, "how": "is here, but on one device it " + NOT_THERE}  # fmt: skip


def _worst(one: torch.Tensor, mine: List[Tuple[int, torch.Tensor]], negligible: float, bound: float) -> Row:
    """Compare a tensor as each rank has it, and return what is farthest from one device."""
    if not mine:
        return {**_compared(one, None, negligible), "bound": bound}
    rows = [(rank, _compared(one, other, negligible)) for rank, other in mine]
    wrong = [rank for rank, row in rows if not row["difference"] <= bound]
    rank, worst = max(rows, key=lambda pair: (pair[1]["difference"], -pair[0]))
    if wrong and len(wrong) < len(rows):
        worst = {**worst, "how": "%s on rank %d" % (worst["how"], rank)}
    elif wrong:
        worst = rows[0][1]
    return {**worst, "bound": bound}


def _negligible(row: Row, common: float) -> float:
    """Return what a gradient may be off by whatever its size: a small one is what is left of larger parts."""
    return float((NEGLIGIBLE + SLACK * common) * row["gradient_norm"])


def _compared(one: torch.Tensor, ours: Optional[torch.Tensor], negligible: float) -> Row:
    if ours is None:
        difference = 0.0 if not one.any() else float("inf")
        return {"difference": difference, "factor": 0.0, "how": NOT_THERE}
    if one.shape != ours.shape:
        how = HAS_SHAPE + "%s, but %s on one device" % (tuple(ours.shape), tuple(one.shape))
        return {"difference": float("inf"), "factor": 0.0, "how": how}
    one, ours = _plain(one), _plain(ours)
    size = float(one.norm())
    difference = _apart(one, ours)
    if float((ours - one).norm()) <= negligible and difference > 0.0:
        difference = min(difference, FLOOR)
    factor = float((ours * one).sum()) / size**2 if size else 0.0
    is_factor = float((ours - factor * one).norm()) < 1e-3 * abs(factor) * size and abs(factor - 1) > 1e-3
    how = "is %s times as large" % times(factor) if is_factor else "differs by %.2g of its norm" % difference
    return {"difference": difference, "factor": factor if is_factor else 0.0, "how": how}


def _plain(tensor: torch.Tensor) -> torch.Tensor:
    return torch.view_as_real(tensor).double() if tensor.is_complex() else tensor.double()


def _apart(one: torch.Tensor, other: Optional[torch.Tensor]) -> float:
    """Return how far two tensors are apart, as a part of the first one's size."""
    if other is None or one.shape != other.shape:
        return float("inf")
    one, other = _plain(one), _plain(other)
    if torch.equal(torch.nan_to_num(one, nan=0.5), torch.nan_to_num(other, nan=0.5)):
        return 0.0
    apart = float((other - one).norm()) / (float(one.norm()) or 1.0)
    return apart if apart == apart else float("inf")


def _of_tensor(row: Row) -> Wrong:
    return Wrong(row["step"], row["tensor"], row["factor"], "%s %s" % (row["tensor"], row["how"]))


def _first(number: Optional[Wrong], tensor: Optional[Wrong]) -> Optional[Wrong]:
    """Return what went wrong first; in the same step a tensor says more than a number, except for the learning rate."""
    if number is None or tensor is None:
        return number or tensor
    if number.step < tensor.step or (number.step == tensor.step and number.tensor == "learning rate"):
        return number
    return tensor


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
