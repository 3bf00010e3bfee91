"""Compare recorded trainings: `python -m echelon.train.compare ORACLE REORDERED OTHER NUM_RANKS` prints a JSON verdict.

The oracle is one device. The second record is the oracle again, with the samples of every batch in another order: how
far it strays is what rounding does to this script, and the bound for the third.
"""

import json
import os
import sys
from typing import Any, Dict, List, Optional, Tuple

import torch

from .factors import meaning

EQUAL, WITHIN, WRONG = "equal to the bit", "equal within rounding", "WRONG"
UNKNOWN = "cannot be compared"
MOST_STRAY = 1e-3  # in the first loss, before anything was trained; half precision strays this far
SLACK = 16.0  # times what rounding did to the oracle; several ranks sum in more than one other order
FLOOR = 2e-6  # relative: some ulps of float32, where another order happened to change nothing
QUANTITIES = ("loss", "gradient_norm", "learning_rate")
Row = Dict[str, Any]


def main(argv: List[str]) -> int:
    """Print the verdict of three records."""
    result = verdict(*argv[:3])
    result["is_wrong"] = result["verdict"] == WRONG
    result["is_unknown"] = result["verdict"] == UNKNOWN
    result["meaning"] = meaning(result.get("factor", 0.0), int(argv[3])) if result["is_wrong"] else ""
    sys.stdout.write(json.dumps(result) + "\n")
    return 0


def verdict(oracle: str, reordered: str, other: str) -> Dict[str, Any]:
    """Return the verdict, every step's figures, and where it first went wrong."""
    rows = [_rows(folder) for folder in (oracle, reordered, other)]
    num_steps = len(rows[0])
    stray = _relative(rows[0][0]["loss"], rows[1][0]["loss"]) if rows[0] and rows[1] else float("inf")
    if stray > MOST_STRAY:
        why = "two runs on one rank differ by %.2g in their first loss: the script draws data of its own" % stray
        return {"verdict": UNKNOWN, "why": why, "steps": [], "tensors": []}
    if len(rows[2]) != num_steps:
        return _wrong(1, "the number of steps", "one device makes %d, and this %d" % (num_steps, len(rows[2])), rows)
    steps, wrong = [], None
    bounds = dict.fromkeys(QUANTITIES, 0.0)
    for one, again, ours in zip(*rows):  # noqa: B905
        figures: Row = {"step": one["step"]}
        for name in QUANTITIES:
            bounds[name] = max(bounds[name], _relative(one[name], again[name]))
            difference = _relative(one[name], ours[name])
            limit = FLOOR + SLACK * bounds[name]
            figures[name] = {"one": one[name], "other": ours[name], "difference": difference, "bound": limit}
            if difference > limit and wrong is None:
                wrong = (one["step"], name)
        steps.append(figures)
    tensors = _tensors(oracle, reordered, other)
    is_equal = all(row["difference"] == 0.0 for row in tensors) and rows[0] == rows[2]
    result: Dict[str, Any] = {"verdict": EQUAL if is_equal else WITHIN, "steps": steps, "tensors": tensors, "why": ""}
    bad = next((row for row in tensors if row["difference"] > row["bound"]), None)
    if wrong is not None or bad is not None:
        result.update(_explained(wrong, bad))
    return result


def _explained(wrong: Optional[Tuple[int, str]], bad: Optional[Row]) -> Row:
    if bad is None or (wrong is not None and wrong[0] < bad["step"]):
        step, name = wrong or (0, "")
        return {"verdict": WRONG, "first_step": step, "tensor": "", "why": "the %s differs" % name.replace("_", " ")}
    why = "%s of parameter %d differs by %.2g" % (bad["kind"], bad["number"], bad["difference"])
    if bad["factor"]:
        why = "%s of parameter %d is %.4g times as large" % (bad["kind"], bad["number"], bad["factor"])
    return {"verdict": WRONG, "first_step": bad["step"], "tensor": bad["kind"], "factor": bad["factor"], "why": why}


def _wrong(step: int, what: str, why: str, rows: List[List[Row]]) -> Dict[str, Any]:
    return {"verdict": WRONG, "first_step": step, "tensor": what, "why": why, "steps": [], "tensors": [],
            "num_steps": [len(each) for each in rows]}  # fmt: skip


def _rows(folder: str) -> List[Row]:
    try:
        with open(os.path.join(folder, "steps.jsonl")) as file:
            return [json.loads(line) for line in file]
    except FileNotFoundError:
        return []


def _tensors(oracle: str, reordered: str, other: str) -> List[Row]:
    """Compare all tensors at the steps that were kept, gradients first: they go wrong before parameters do."""
    found = []
    names = sorted((name for name in os.listdir(oracle) if name.endswith(".pt")), key=lambda name: int(name[5:-3]))
    for name in names:
        if not all(os.path.exists(os.path.join(folder, name)) for folder in (reordered, other)):
            continue
        one, again, ours = (
            torch.load(os.path.join(folder, name), weights_only=True) for folder in (oracle, reordered, other)
        )
        for kind in ("gradients", "parameters"):
            for number, tensor in enumerate(one[kind]):
                if tensor is not None and ours[kind][number] is not None:
                    compared = _difference(tensor, again[kind][number], ours[kind][number])
                    found.append({"step": int(name[5:-3]), "kind": kind[:-1], "number": number, **compared})
    return found


def _difference(one: torch.Tensor, again: torch.Tensor, ours: torch.Tensor) -> Row:
    one, again, ours = one.double(), again.double(), ours.double()
    scale = float(one.norm()) or 1.0
    difference = float((ours - one).norm()) / scale
    factor = float((ours * one).sum()) / scale**2
    is_factor = float((ours - factor * one).norm()) < 1e-3 * abs(factor) * scale and abs(factor - 1) > 1e-3
    bound = 10 * FLOOR + SLACK * float((again - one).norm()) / scale
    return {"difference": difference, "bound": bound, "factor": factor if is_factor else 0.0}


def _relative(one: Optional[float], other: Optional[float]) -> float:
    if one is None or other is None:
        return 0.0 if one == other else float("inf")
    return abs(one - other) / max(abs(one), 1e-12)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
