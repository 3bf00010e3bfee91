"""Whether there was anything to compare, and what was compared."""

import math
from typing import Any, NamedTuple

from echelon.orders.records import INITIAL, NUM_DIGESTS, PARAMETER
from echelon.trials.proof import findings
from echelon.trials.proof.evidence import RecordedRun, Recordings, Row, on_ranks
from echelon.trials.proof.prints import Pair
from echelon.trials.proof.tensors import is_same
from echelon.units import counted

_FEWEST_STEPS = 2  # the first step alone shows no use of what it has changed


class NothingToCompare(NamedTuple):
    """Why there is nothing to compare."""

    step: int
    """From this step on there is nothing to compare."""
    why: str
    meaning: str


def without_values(case: Recordings) -> NothingToCompare | None:
    """Return the step from which on there are no values to compare, equal or not; None if there is none."""
    return _no_numbers(case) or _other_values(case)


def without_training(case: Recordings) -> NothingToCompare | None:
    """Return why runs that do not differ show nothing; None where they show a training."""
    return _too_short(case) or _no_change(case)


def _no_numbers(case: Recordings) -> NothingToCompare | None:
    """Return the step from which on losses or gradients are no numbers, on one device and on several ranks."""
    step = next((step for step in _without_numbers(case.oracle) if step in _without_numbers(case.several)), None)
    if step is None:
        return None
    told = {rank: facts["no_number"] for rank, facts in enumerate(case.several.facts) if "no_number" in facts}
    first = min((fact["step"] for fact in told.values() if fact["step"] >= step), default=0)
    began = [rank for rank, fact in told.items() if fact["step"] == first]
    ranks = [rank for rank in began if "row" in told[rank]] or began  # a scaled loss is that of all ranks
    if not ranks:
        return NothingToCompare(
            step, f"from step {step} on losses or gradients are no numbers", "a value that is no number equals nothing"
        )
    loss = told[ranks[0]]["loss"]
    why = f"from step {step} on there is no number: the loss is {loss} on {on_ranks(ranks)} in step {first}"
    facts = [fact for fact in (*told.values(), *_told(case.oracle)) if fact["step"] == first and "row" in fact]
    of_sample: dict[str, Any] = max(facts, key=lambda fact: "sample" in fact, default={})
    if "sample" in of_sample:
        return NothingToCompare(
            step, why, f"sample {of_sample['sample']} of the data set has a value that is not finite"
        )
    if of_sample:
        return NothingToCompare(step, why, f"row {of_sample['row']} of its batch has a value that is not finite")
    return NothingToCompare(
        step, why, "its batch is finite: the model or the loss makes the value, for example by 0/0 or log(0)"
    )


def _told(recording: RecordedRun) -> list[dict[str, Any]]:
    return [facts["no_number"] for facts in recording.facts if "no_number" in facts]


def _without_numbers(recording: RecordedRun) -> list[int]:
    """Return the steps at the end whose loss or gradients are no numbers; a gradient scaler leaves one step out."""
    last: list[int] = []
    for row in reversed(recording.rows):
        if math.isfinite(row["gradient_norm"]) and math.isfinite(row["loss"] or 0.0):
            break
        last.append(row["step"])
    return last[::-1]


def _too_short(case: Recordings) -> NothingToCompare | None:
    num_steps = min(len(case.oracle.rows), len(case.several.rows))
    if num_steps >= _FEWEST_STEPS:
        return None
    meaning = "what a step changes shows in the next one: let the script make 2 steps or more"
    return NothingToCompare(1, f"the script made {counted(num_steps, 'step')}", meaning)


def _no_change(case: Recordings) -> NothingToCompare | None:
    """Return why a training that stands still shows nothing: the same loss in all steps, or the same weights."""
    losses = {row["loss"] for row in case.oracle.rows}
    if len(losses) == 1 and None not in losses and not any(row["gradient_norm"] for row in case.oracle.rows):
        why = f"the loss is {losses.pop():.7g} in each of {len(case.oracle.rows)} steps"
        return NothingToCompare(1, why, "it does not depend on the weights: no gradient is other than 0")
    first = case.oracle.tensors(1, "start")[0]
    later = [case.oracle.tensors(step, kind)[0] for step, kind in case.oracle.kept() if kind == "parameters"]
    pairs = [(tensor, kept.get(PARAMETER + name[len(INITIAL) :])) for kept in later for name, tensor in first.items()]
    if pairs and all(is_same(*pair) for pair in pairs):
        rates = {row["learning_rate"] for row in case.oracle.rows}
        meaning = "the learning rate is 0" if rates == {0.0} else "the optimizer has no gradient that changes a weight"
        return NothingToCompare(1, f"no weight changes in {len(case.oracle.rows)} steps", meaning)
    return None


def _other_values(case: Recordings) -> NothingToCompare | None:
    """Return the step whose samples are the same of the data set, but have other values: the loader draws noise."""
    for oracle, several in zip(case.oracle.rows, case.several.rows, strict=False):
        chosen = [rank["chosen"] for rank in several["ranks"]]
        if not (case.is_own and case.is_noisy) or oracle["chosen"] is None or None in chosen or not oracle["samples"]:
            return None
        is_same_choice = sum(chosen) % NUM_DIGESTS == oracle["chosen"]
        if is_same_choice and findings.digest(oracle) != findings.digest(several):
            why = f"in step {oracle['step']} the same samples of the data set have other values than on one device"
            meaning = (
                "the data set or the loader draws noise by the place of a sample, so that each rank and each worker "
                "draws another one: leave the noise out of the proof, or draw it from the index of the sample"
            )
            return NothingToCompare(oracle["step"], why, meaning)
    return None


def compared(case: Recordings, tensors: list[Row], printed: list[Pair]) -> dict[str, list[str]]:
    """Return the names of what was compared, and of what was not."""
    kinds = {row["kind"] for row in tensors}
    is_there = {
        "losses": any(row["loss"] is not None for row in case.oracle.rows),
        "gradients": "gradients" in kinds,
        "weights": "parameters" in kinds,
        "states of the optimizer": "states" in kinds,
        "buffers": "others" in kinds,
    }
    count = sum(not pair.is_apart for pair in printed)
    of_ranks = sorted({pair.name for pair in printed if pair.is_apart})
    yes = [name for name, there in is_there.items() if there] + ([f"{count} printed numbers"] if count else [])
    no = [name for name, there in is_there.items() if not there and name != "buffers"]
    no += [] if printed else ["printed numbers"]
    no += [f"what rank 0 prints of its own samples ({', '.join(map(repr, of_ranks[:3]))})"] if of_ranks else []
    return {"compared": yes, "not_compared": [*no, "files"]}
