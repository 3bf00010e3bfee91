"""Compare recorded trainings: python -m echelon.trials.proof.compare ORACLE REORDERED SEVERAL N [own] [synced] [noisy].

It prints JSON.
The oracle is one device. The second record is the oracle again, with the samples of every batch in another order. Its
distance from the oracle is what rounding does to this script, and bounds the distance of the third record.
"""

import json
import math
import statistics
import sys
from collections.abc import Iterator
from typing import Any

from echelon.orders.records import BUFFER, EQUAL, GRADIENT, INITIAL, MOST_STRAY, NOTHING, PARAMETER, WITHIN
from echelon.trials.proof import causes, factors, findings, forward, prints, scope
from echelon.trials.proof.evidence import (
    HAS_SHAPE,
    NOT_THERE,
    FirstDifference,
    RecordedRun,
    Recordings,
    Row,
    copies,
    relative,
    times,
)
from echelon.trials.proof.tensors import NEAR, NEGLIGIBLE, Tensor, Tensors, apart, distance, doubles, multiple

WRONG = "WRONG"
UNKNOWN = "cannot be compared"
SLACK = 16.0  # times what rounding did to the oracle; several ranks sum in more than one other order
FLOOR = 2e-6  # relative: some ulps of float32, where another order happened to change nothing
HALF = 1e-4  # a dtype whose last bit is more than this is of half precision
TELLING = 0.1  # a bound that is wider than this lets anything pass
QUANTITIES = ("learning_rate", "loss", "gradient_norm")
_BEFORE_OPTIMIZER = (INITIAL, GRADIENT, BUFFER, "loss", "gradient norm")


def main(argv: list[str]) -> int:
    """Print the verdict of three records; of a single record, where the others are missing, what it shows by itself."""
    if argv[0] == "--alone":
        alone = findings.alone(RecordedRun(argv[1], int(argv[2])))
        sys.stdout.write(json.dumps(_told(alone) if alone else {}) + "\n")
        return 0
    num_ranks = int(argv[3])
    oracle, reordered, several = RecordedRun(argv[0], 1), RecordedRun(argv[1], 1), RecordedRun(argv[2], num_ranks)
    several.align(oracle.tensors(1, "start")[0])
    words = argv[4:]
    case = Recordings(
        oracle, reordered, several, num_ranks, is_own="own" in words, is_synced="synced" in words,
        is_noisy="noisy" in words,
    )  # fmt: skip
    result = verdict(case)
    result["is_wrong"] = result["verdict"] == WRONG
    result["is_unknown"] = result["verdict"] == UNKNOWN
    result["step_seconds"] = {"one": oracle.step_seconds, "other": several.step_seconds}
    sys.stdout.write(json.dumps(result) + "\n")
    return 0


def verdict(case: Recordings) -> dict[str, Any]:
    """Return the verdict, the figures of every step, and the first difference."""
    result: dict[str, Any] = {"verdict": UNKNOWN, "why": "", "hint": "", "meaning": "", "steps": [], "tensors": []}
    stray = relative(case.oracle.rows[0]["loss"], case.reordered.rows[0]["loss"])
    if not stray <= MOST_STRAY:
        why = f"two runs on one rank differ by {stray:.2g} in their first loss: "
        why += "the script draws numbers that no seed decides"
        hint = "set the seeds of all that draws, at its top: torch, numpy, random, and the workers of its loaders"
        return {**result, "why": why, "hint": hint}
    alone = findings.alone(case.several) if case.is_own else None
    why_not = {} if alone else findings.same_samples(case) or findings.other_samples(case)
    if why_not:
        return {**result, **why_not}
    result["steps"], number = _steps(case)
    result["tensors"] = tensors = list(_tensors(case))
    wrong = (row for row in tensors if not row["difference"] <= row["bound"])
    of_tensors = (
        FirstDifference(row["step"], row["tensor"], row["factor"], f"{row['tensor']} {row['how']}") for row in wrong
    )
    difference = _first(number, next(of_tensors, None))
    may_be_rounding = _may_be_rounding(difference, case)
    counts = len(case.oracle.rows), len(case.several.rows)
    if difference is None and counts[0] != counts[1]:
        why = "one device makes {} steps, but this run makes {}".format(*counts)
        difference = FirstDifference(min(counts) + 1, "", 0.0, why)
    is_alone = alone is not None and (difference is None or alone.step <= difference.step)
    nothing = None if is_alone else scope.without_values(case)
    if difference is None and nothing is None:
        nothing = scope.without_training(case)
    if nothing is not None and (difference is None or difference.step >= nothing.step):
        told = {"verdict": NOTHING, "first_step": nothing.step, "why": nothing.why, "meaning": nothing.meaning}
        return {**result, **told}
    printed = prints.pairs(case)
    difference = alone if is_alone else _explained(difference, case) or prints.difference(case, printed)
    if difference is not None:
        return {**result, **_told(difference), "may_be_rounding": may_be_rounding and not is_alone}
    is_equal = all(row["difference"] == 0.0 for row in tensors) and all(
        row[name]["difference"] == 0.0 for row in result["steps"] for name in QUANTITIES
    )
    telling = [row for row in result["steps"] if max(row[name]["bound"] for name in QUANTITIES) <= TELLING]
    kept = scope.compared(case, tensors, printed)
    return {**result, "verdict": EQUAL if is_equal else WITHIN, "num_telling": len(telling), **kept}


def _may_be_rounding(difference: FirstDifference | None, case: Recordings) -> bool:
    """Say whether an optimizer may have made this difference of rounding: losses and gradients agree in the first step.

    Half precision rounds, and skips steps, in ways that a run in float64 does not have.
    """
    if difference is None or _epsilon(case) >= HALF:
        return False
    if difference.step == 1 and (difference.factor or difference.tensor.startswith(_BEFORE_OPTIMIZER)):
        return False
    is_number = bool(difference.tensor) and not difference.tensor.startswith("learning rate")
    return is_number and NOT_THERE not in difference.why and HAS_SHAPE not in difference.why


def _told(difference: FirstDifference) -> dict[str, Any]:
    return {"verdict": WRONG, "first_step": difference.step, "tensor": difference.tensor, "factor": difference.factor,
            "why": difference.why, "meaning": difference.meaning,
            "is_of_batch_norm": difference.meaning.endswith(factors.OTHER_NORM)}  # fmt: skip


def _explained(difference: FirstDifference | None, case: Recordings) -> FirstDifference | None:
    """Return a difference with its cause, at its first place in the forward pass."""
    if difference is None:
        return None
    precedes_forward = difference.tensor.startswith((INITIAL, BUFFER, "learning rate"))
    if case.is_own and difference.step == 1 and not precedes_forward:
        difference = forward.first_apart(case) or difference
    return difference if difference.meaning else difference._replace(meaning=causes.of(difference, case))


def _steps(case: Recordings) -> tuple[list[Row], FirstDifference | None]:
    """Compare the numbers of every step: the three quantities, and the norm of each gradient."""
    steps: list[Row] = []
    difference: FirstDifference | None = None
    strays = dict.fromkeys(QUANTITIES, 0.0)
    strays_of_norms: dict[str, float] = {}
    floor = _floor(case, FLOOR)
    for rows in zip(case.oracle.rows, case.reordered.rows, case.several.rows, strict=False):
        oracle, reordered, several = rows
        norms = [relative(norm, reordered["norms"].get(name)) for name, norm in oracle["norms"].items()]
        common = statistics.median(norms) if norms else 0.0
        figures: Row = {"step": oracle["step"]}
        for name in QUANTITIES:
            shared = 0.0 if name == "learning_rate" else min(common, 1.0)
            strays[name] = max(strays[name], relative(oracle[name], reordered[name]), shared)
            bound = (FLOOR if name == "learning_rate" else floor) + SLACK * strays[name]
            gap = relative(oracle[name], several[name])
            if name == "loss" and 0 < gap < math.inf and abs(oracle[name] - several[name]) <= NEGLIGIBLE:
                gap = min(gap, FLOOR)  # a loss of 0 whose terms cancel
            figures[name] = {"one": oracle[name], "other": several[name], "difference": gap, "bound": bound}
            if difference is None and not gap <= bound:
                difference = _of_number(name, oracle, several)
        steps.append(figures)
        difference = difference or _of_rates(oracle, several)
        if difference is None or difference.step == oracle["step"]:
            difference = _of_norms(rows, strays_of_norms, common, _floor(case, 10 * FLOOR)) or difference
    return steps, difference


def _floor(case: Recordings, floor: float) -> float:
    """Return the least bound; with half precision it is the rounding of each rank's sums."""
    epsilon = _epsilon(case)
    return floor if epsilon < HALF else max(floor, 4 * epsilon)


def _epsilon(case: Recordings) -> float:
    """Return the last bit of the coarsest dtype in which the script computes."""
    return max(float(recording.facts[0].get("eps", 0.0)) for recording in (case.oracle, case.several))


def _of_number(name: str, oracle: Row, several: Row) -> FirstDifference:
    wanted, number, name = oracle[name], several[name], name.replace("_", " ")
    if wanted is None or number is None or not wanted:
        return FirstDifference(oracle["step"], "", 0.0, f"the {name} is {wanted} on one device, but {number} here")
    why = f"the {name} is {number:.7g}, but {wanted:.7g} on one device: {times(number / wanted)} times as large"
    return FirstDifference(oracle["step"], name, number / wanted, why)


def _of_rates(oracle: Row, several: Row) -> FirstDifference | None:
    """Return the first learning rate that differs, of any group and rank."""
    for rank, row in enumerate(several["ranks"]):
        for group, (wanted, rate) in enumerate(zip(oracle["learning_rates"], row["learning_rates"], strict=False)):
            if relative(wanted, rate) > FLOOR:
                where = f" of group {group}" if group else ""
                why = f"the learning rate{where} is {rate:.7g} on rank {rank}, but {wanted:.7g} on one device"
                return FirstDifference(oracle["step"], "learning rate", rate / wanted if wanted else 0.0, why)
    return None


def _of_norms(
    rows: tuple[Row, Row, Row], strays: dict[str, float], common: float, floor: float
) -> FirstDifference | None:
    """Return the first gradient whose norm differs, on any rank, where not all of it was kept."""
    oracle, reordered, several = rows
    for name, wanted in oracle["norms"].items():
        strays[name] = max(strays.get(name, 0.0), relative(wanted, reordered["norms"].get(name)), common)
        for rank, norm in [(-1, several["norms"].get(name)), *several["of_ranks"].get(name, [])]:
            if norm is None:
                continue  # the comparison of tensors reports it
            is_negligible = abs(norm - (wanted or 0.0)) <= _negligible(oracle["gradient_norm"], common)
            if not is_negligible and not relative(wanted, norm) <= floor + SLACK * strays[name]:
                factor = norm / wanted if norm and wanted else 0.0
                where = f" on rank {rank}" if rank > 0 else ""
                why = f"the norm of the gradient of {name} is {times(factor)} times as large{where}"
                return FirstDifference(oracle["step"], GRADIENT + name, factor, why)
    return None


def _tensors(case: Recordings) -> Iterator[Row]:
    """Compare all tensors at the steps that were kept."""
    strays: dict[str, float] = {}
    floor = _floor(case, 10 * FLOOR)
    for step, kind in case.oracle.kept():
        (oracle,), (reordered,) = case.oracle.tensors(step, kind), case.reordered.tensors(step, kind)
        several = case.several.tensors(step, kind)
        if kind == "others":
            _add_held(case, step, (oracle, reordered), several)
        if (oracle and not reordered) or not any(several):
            continue
        distances = {label: apart(tensor, reordered.get(label)) for label, tensor in oracle.items()}
        common = statistics.median(min(distance, 1.0) for distance in distances.values()) if distances else 0.0
        scales = _scales(oracle) if kind in ("gradients", "states") else {}
        for label, wanted in oracle.items():
            strays[label] = max(strays.get(label, 0.0), distances[label], common)
            bound = floor + SLACK * strays[label]
            tensors = case.several.whole(label, several)
            if kind == "others":
                tensors = [(rank, tensor) for rank, tensor in tensors if tensor.shape == wanted.shape]
                if not tensors:
                    continue
            row = {"step": step, "kind": kind, "tensor": label, "tells": bound <= TELLING}
            negligible = _negligible(scales.get(_what(label), 0.0), common)
            yield {**row, **_worst(wanted, tensors, negligible, bound)}
        yield from _surplus(step, kind, oracle, several)


def _add_held(case: Recordings, step: int, alone: tuple[Tensors, Tensors], several: list[Tensors]) -> None:
    """Add parameters that ranks use but do not train, as one device has them; drop parameters that no module uses."""
    for tensors, calls in zip(several, case.several.activation_traces(), strict=False):
        used = {call["module"] for call in calls}
        for label in [label for label in tensors if label not in alone[0] and label.startswith(PARAMETER)]:
            if label[len(PARAMETER) :].rpartition(".")[0] not in used:
                del tensors[label]
    labels = {label for tensors in several for label in tensors}
    for recording, tensors in zip((case.oracle, case.reordered), alone, strict=True):
        trained = recording.tensors(step - 1, "parameters")[0]
        tensors.update((label, trained[label]) for label in trained if label in labels)


def _surplus(step: int, kind: str, oracle: Tensors, several: list[Tensors]) -> Iterator[Row]:
    """Yield the tensors that only several ranks have."""
    for label in dict.fromkeys(label for tensors in several for label in tensors if label not in oracle):
        if kind != "others" and (kind != "gradients" or any(tensor.any() for tensor in copies(label, several))):
            yield {"step": step, "kind": kind, "tensor": label, "difference": float("inf"), "bound": 0.0,
                   "factor": 0.0, "how": "is here, but on one device it " + NOT_THERE}  # fmt: skip


def _worst(wanted: Tensor, tensors: list[tuple[int, Tensor]], negligible: float, bound: float) -> Row:
    """Compare a tensor as each rank has it, and return the comparison that is farthest from one device."""
    if not tensors:
        return {"difference": float("inf") if wanted.any() else 0.0, "bound": bound, "factor": 0.0, "how": NOT_THERE}
    rows = [(rank, _compared(wanted, tensor, negligible)) for rank, tensor in tensors]
    wrong = [rank for rank, row in rows if not row["difference"] <= bound]
    rank, worst = max(rows, key=lambda pair: (pair[1]["difference"], -pair[0]))
    if wrong and len(wrong) < len(rows):
        worst = {**worst, "how": f"{worst['how']} on rank {rank}"}
    elif wrong:
        worst = rows[0][1]
    return {**worst, "bound": bound}


def _scales(tensors: Tensors) -> dict[str, float]:
    """Return the norm of all gradients together, or of all states with one name."""
    squares: dict[str, float] = {}
    for label, tensor in tensors.items():
        squares[_what(label)] = squares.get(_what(label), 0.0) + float(doubles(tensor).pow(2).sum())
    return {what: square**0.5 for what, square in squares.items()}


def _what(label: str) -> str:
    return label.partition(" of ")[0]


def _negligible(scale: float, common: float) -> float:
    """Return by how much any gradient or state may be off: a small gradient is the remainder of larger parts."""
    return float((NEGLIGIBLE + SLACK * common) * scale)


def _compared(wanted: Tensor, tensor: Tensor, negligible: float) -> Row:
    if wanted.shape != tensor.shape:
        how = f"{HAS_SHAPE}{tuple(tensor.shape)}, but {tuple(wanted.shape)} on one device"
        return {"difference": float("inf"), "factor": 0.0, "how": how}
    difference = apart(wanted, tensor)
    if difference > 0.0 and distance(tensor, wanted) <= negligible:
        difference = min(difference, FLOOR)
    factor = multiple(tensor, wanted)
    if factor and abs(factor - 1) > NEAR:
        return {"difference": difference, "factor": factor, "how": f"is {times(factor)} times as large"}
    return {"difference": difference, "factor": 0.0, "how": f"differs by {difference:.2g} of its norm"}


def _first(number: FirstDifference | None, tensor: FirstDifference | None) -> FirstDifference | None:
    """Return the earlier difference; in one step a tensor says more than a number, except for the learning rate."""
    if number is None or tensor is None:
        return number or tensor
    if number.step < tensor.step or (number.step == tensor.step and number.tensor == "learning rate"):
        return number
    return tensor


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
