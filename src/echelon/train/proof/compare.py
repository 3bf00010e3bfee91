"""Compare recorded trainings and print a JSON verdict: python -m echelon.train.proof.compare ORACLE REORDERED OTHER N

The oracle is one device. The second record is the oracle again, with the samples of every batch in another order: how
far it strays is what rounding does to this script, and the bound for the third.
"""

import json
import os
import statistics
import sys
from typing import Any, Dict, Iterator, List, NamedTuple, Optional, Tuple

import torch

from . import factors
from .record import DIGESTS

EQUAL, WITHIN, WRONG = "equal to the bit", "equal within rounding", "WRONG"
UNKNOWN = "cannot be compared"
MOST_STRAY = 1e-3  # in the first loss, before anything was trained; half precision strays this far
SLACK = 16.0  # times what rounding did to the oracle; several ranks sum in more than one other order
FLOOR = 2e-6  # relative: some ulps of float32, where another order happened to change nothing
NEGLIGIBLE = 1e-7  # of the whole gradient, an ulp of float32
TELLING = 0.1  # a bound that is wider than this lets anything pass
QUANTITIES = ("learning_rate", "loss", "gradient_norm")
KINDS = ("start", "gradients", "states", "parameters")  # in the order in which they go wrong
NOT_THERE, HAS_SHAPE = "is not there", "has the shape "
Row = Dict[str, Any]


class Wrong(NamedTuple):
    """The first place where two trainings differ by more than rounding."""

    step: int
    tensor: str  # its label; empty where it is a number of the whole step
    factor: float  # 0: it is no multiple
    why: str


class Trail(NamedTuple):
    """What was recorded of the oracle, of the oracle in another order, and of the other training."""

    folders: Tuple[str, str, str]
    rows: Tuple[List[Row], List[Row], List[Row]]
    num_ranks: int
    is_own: bool  # the script distributes itself


def main(argv: List[str]) -> int:
    """Print the verdict of three records."""
    folders = (argv[0], argv[1], argv[2])
    rows = (_rows(argv[0]), _rows(argv[1]), _rows(argv[2]))
    result = verdict(Trail(folders, rows, int(argv[3]), argv[4:] == ["own"]))
    result["is_wrong"] = result["verdict"] == WRONG
    result["is_unknown"] = result["verdict"] == UNKNOWN
    sys.stdout.write(json.dumps(result) + "\n")
    return 0


def verdict(trail: Trail) -> Dict[str, Any]:
    """Return the verdict, every step's figures, and where it first went wrong."""
    one, again, ours = trail.rows
    result: Dict[str, Any] = {"verdict": UNKNOWN, "why": "", "hint": "", "meaning": "", "steps": [], "tensors": []}
    stray = _relative(one[0]["loss"], again[0]["loss"])
    if not stray <= MOST_STRAY:
        result["why"] = (
            "two runs on one rank differ by %.2g in their first loss: the script draws data of its own" % stray
        )
        result["hint"] = "seed it: torch.manual_seed(0) at its top"
        return result
    why_not = _same_samples(trail) or _other_samples(trail)
    if why_not:
        return {**result, **why_not}
    result["steps"], wrong = _steps(trail)
    result["tensors"] = tensors = list(_tensors(trail))
    wrong = _first(wrong, next((_of_tensor(row) for row in tensors if not row["difference"] <= row["bound"]), None))
    if wrong is None and len(ours) != len(one):
        why = "one device makes %d steps, and this %d" % (len(one), len(ours))
        wrong = Wrong(min(len(one), len(ours)) + 1, "", 0.0, why)
    if wrong is not None:
        return {**result, "verdict": WRONG, "first_step": wrong.step, "tensor": wrong.tensor, "factor": wrong.factor,
                "why": wrong.why, "meaning": _meaning(wrong, trail)}  # fmt: skip
    is_equal = all(row["difference"] == 0.0 for row in tensors) and all(
        row[name]["difference"] == 0.0 for row in result["steps"] for name in QUANTITIES
    )
    telling = [row for row in result["steps"] if max(row[name]["bound"] for name in QUANTITIES) <= TELLING]
    return {**result, "verdict": EQUAL if is_equal else WITHIN, "num_telling": len(telling)}


def _rows(folder: str) -> List[Row]:
    with open(os.path.join(folder, "steps.jsonl")) as file:
        return [json.loads(line) for line in file]


def _samples(row: Row) -> int:
    """Return how many samples a step has, those that every rank has counted once; 0: they were not seen."""
    ranks = row["ranks"]
    if len({rank["digest"] for rank in ranks}) == 1:
        return int(ranks[0]["samples"])
    return sum(int(rank["samples"]) for rank in ranks)


def _same_samples(trail: Trail) -> Dict[str, str]:
    """Say where whole copies of the model are all trained on the same samples: N ranks then do the work of one."""
    seen = [row["ranks"] for row in trail.rows[2] if row["ranks"][0]["samples"]]
    if not trail.is_own or not seen or any(len({rank["digest"] for rank in ranks}) > 1 for ranks in seen):
        return {}
    with open(os.path.join(trail.folders[2], "about.json")) as file:
        if json.load(file)["num_sharded"]:
            return {}  # ranks that share a layer share its samples
    why = "all %d ranks train on the same samples, so together they do the work of one" % trail.num_ranks
    hint = "deal the samples out: DataLoader(dataset, batch_size, sampler=DistributedSampler(dataset))"
    return {"why": why, "hint": hint}


def _other_samples(trail: Trail) -> Dict[str, str]:
    """Say where a step of several ranks has more samples than one of a single process: these are two trainings."""
    for one, ours in zip(trail.rows[0], trail.rows[2]):  # noqa: B905
        single, several = _samples(one), _samples(ours)
        if single and several and single != several:
            why = "a step of one process has %d samples, and a step of %d ranks together %d" % (
                single, trail.num_ranks, several,
            )  # fmt: skip
            if several == single * trail.num_ranks:
                why += ": the script's batch is that of a rank, so more ranks train with a larger batch"
            hint = (
                "give each rank its part of one global batch, where the script takes its batch size as an argument: "
                "echelon prove --global-batch %d … train.py --batch-size {batch_per_rank}" % several
            )
            return {"why": why, "hint": hint} if one["step"] == 1 else {}
    return {}


def _steps(trail: Trail) -> Tuple[List[Row], Optional[Wrong]]:
    """Compare what there is of every step: the three numbers, and the norm of each gradient."""
    steps: List[Row] = []
    wrong: Optional[Wrong] = None
    strays = dict.fromkeys(QUANTITIES, 0.0)
    of_norms: Dict[str, float] = {}
    for one, again, ours in zip(*trail.rows):  # noqa: B905
        norms = [_relative(norm, again["norms"].get(name)) for name, norm in one["norms"].items()]
        common = statistics.median(norms) if norms else 0.0
        figures: Row = {"step": one["step"]}
        for name in QUANTITIES:
            shared = 0.0 if name == "learning_rate" else min(common, 1.0)
            strays[name] = max(strays[name], _relative(one[name], again[name]), shared)
            difference, limit = _relative(one[name], ours[name]), FLOOR + SLACK * strays[name]
            figures[name] = {"one": one[name], "other": ours[name], "difference": difference, "bound": limit}
            if wrong is None and not difference <= limit:
                wrong = _of_number(name, one, ours)
        steps.append(figures)
        if wrong is None or wrong.step == one["step"]:
            wrong = _of_norms(one, again, ours, of_norms, common) or wrong
    return steps, wrong


def _of_number(name: str, one: Row, ours: Row) -> Wrong:
    what = name.replace("_", " ")
    if one[name] is None or ours[name] is None or not one[name]:
        return Wrong(one["step"], "", 0.0, "the %s is %s on one device, and here %s" % (what, one[name], ours[name]))
    ratio = ours[name] / one[name]
    why = "the %s is %.7g, and on one device %.7g: %s times as large" % (what, ours[name], one[name], times(ratio))
    return Wrong(one["step"], what, ratio, why)


def _of_norms(one: Row, again: Row, ours: Row, strays: Dict[str, float], common: float) -> Optional[Wrong]:
    """Return the first gradient whose norm differs, where not all of it was kept."""
    for name, norm in one["norms"].items():
        strays[name] = max(strays.get(name, 0.0), _relative(norm, again["norms"].get(name)), common)
        if name not in ours["norms"]:
            continue  # it is said of the tensors
        other = ours["norms"][name]
        apart = abs((other or 0.0) - (norm or 0.0))
        if not apart <= _negligible(one, common) and not _relative(norm, other) <= (10 * FLOOR + SLACK * strays[name]):
            factor = other / norm if other and norm else 0.0
            why = "the norm of the gradient of %s is %s times as large" % (name, times(factor))
            return Wrong(one["step"], "gradient of " + name, factor, why)
    return None


def _tensors(trail: Trail) -> Iterator[Row]:
    """Compare all tensors at the steps that were kept."""
    oracle, reordered, other = trail.folders
    strays: Dict[str, float] = {}
    for step, kind in _kept(oracle):
        name = "step-%d-%s.pt" % (step, kind)
        if not all(os.path.exists(os.path.join(folder, name)) for folder in (reordered, other)):
            continue
        one, again, ours = (
            torch.load(os.path.join(folder, name), weights_only=True) for folder in (oracle, reordered, other)
        )
        found = {label: _apart(tensor, again.get(label)) for label, tensor in one.items()}
        common = statistics.median(min(value, 1.0) for value in found.values()) if found else 0.0
        negligible = _negligible(trail.rows[0][step - 1], common) if kind == "gradients" else 0.0
        for label, tensor in one.items():
            strays[label] = max(strays.get(label, 0.0), found[label], common)
            row = {"step": step, "kind": kind, "tensor": label, **_compared(tensor, ours.get(label), negligible)}
            yield {**row, "bound": 10 * FLOOR + SLACK * strays[label]}
        for label in ours.keys() - one.keys():
            if kind != "gradients" or ours[label].any():
                yield {"step": step, "kind": kind, "tensor": label, "difference": float("inf"), "bound": 0.0,
                       "factor": 0.0, "how": "is here, and on one device it " + NOT_THERE}  # fmt: skip


def _negligible(row: Row, common: float) -> float:
    """Return what a gradient may be off by whatever its size: a small one is what is left of larger parts."""
    return float((NEGLIGIBLE + SLACK * common) * row["gradient_norm"])


def _kept(folder: str) -> List[Tuple[int, str]]:
    found = [name[len("step-") : -len(".pt")].split("-") for name in os.listdir(folder) if name.endswith(".pt")]
    return sorted(((int(step), kind) for step, kind in found), key=lambda one: (one[0], KINDS.index(one[1])))


def _compared(one: torch.Tensor, ours: Optional[torch.Tensor], negligible: float) -> Row:
    if ours is None:
        difference = 0.0 if not one.any() else float("inf")
        return {"difference": difference, "factor": 0.0, "how": NOT_THERE}
    if one.shape != ours.shape:
        how = HAS_SHAPE + "%s, and on one device %s" % (tuple(ours.shape), tuple(one.shape))
        return {"difference": float("inf"), "factor": 0.0, "how": how}
    one, ours = _plain(one), _plain(ours)
    size = float(one.norm())
    difference = _apart(one, ours)
    if float((ours - one).norm()) <= negligible and difference > 0.0:
        difference = min(difference, FLOOR)
    factor = float((ours * one).sum()) / size**2 if size else 0.0
    is_factor = float((ours - factor * one).norm()) < 1e-3 * abs(factor) * size and abs(factor - 1) > 1e-3
    how = "is %s times as large" % times(factor) if is_factor else "differs by %.2g of its size" % difference
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


def _meaning(wrong: Wrong, trail: Trail) -> str:
    if wrong.tensor == "learning rate":
        return factors.of_learning_rate(wrong.factor, trail.num_ranks)
    if wrong.why.endswith(NOT_THERE) or HAS_SHAPE in wrong.why:
        return factors.OTHER_MODEL
    if wrong.tensor.startswith("initial "):
        return factors.OTHER_START
    here = min(wrong.step, len(trail.rows[0]), len(trail.rows[2])) - 1
    one, ours = trail.rows[0][here], trail.rows[2][here]
    own = [rank["gradient_norm"] for rank in ours["ranks"]]
    if trail.is_own and max(own) - min(own) > 1e-6 * max(own):
        return factors.ALONE
    known = factors.of_own if trail.is_own else factors.meaning
    text = known(wrong.factor, trail.num_ranks)
    if text == factors.WHOLE_BATCH and trail.is_own and _digest(one) != _digest(ours):
        return factors.OTHER_SAMPLES
    return text


def _digest(row: Row) -> int:
    """Return what tells the samples of a step from others, those that every rank has counted once."""
    found = [rank["digest"] for rank in row["ranks"]]
    return int(found[0] if len(set(found)) == 1 else sum(found)) % DIGESTS


def times(factor: float) -> str:
    """Return a factor as people read it."""
    return "%.3f" % factor if 0.01 <= abs(factor) < 1000 else "%.3g" % factor


def _relative(one: Optional[float], other: Optional[float]) -> float:
    if one is None or other is None:
        return 0.0 if one == other else float("inf")
    if one == other or (one != one and other != other):
        return 0.0
    apart = abs(one - other) / max(abs(one), 1e-12)
    return apart if apart == apart else float("inf")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
