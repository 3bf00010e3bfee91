"""What a run shows by itself, and what no tensor shows: files, epochs, samples, and what the script says of itself."""

import itertools
import re
from typing import Any, Dict, Iterator, List, Optional, Tuple

from .case import Case, Row, Wrong, relative
from .evidence import Recorded
from .record import DIGESTS

_NUMBER = re.compile(r"(?<![\w.])[-+]?\d+(?:\.\d+)?(?:[eE][-+]?\d+)?")
_OF_TIME = re.compile(
    r"time|elapsed|took|second|\bsec|/s\b|speed|throughput|\beta\b|memory|[mg]i?b\b|\bm?s\b|rank|pid", re.I
)
_PRINTED = 2e-3  # relative: what is printed is rounded
_READS, _REMOVES = "reads", "removes"


def alone(ours: Recorded) -> Optional[Wrong]:
    """Return what is wrong with a run whatever one device does."""
    return _race(ours) or _stale(ours) or _uneven(ours) or _same_epoch(ours)


def _race(ours: Recorded) -> Optional[Wrong]:
    """Return a file that one rank touches while another uses it: nothing that both take part in lies between."""
    deeds: Dict[Tuple[str, int, int], List[Tuple[int, str]]] = {}
    for rank, facts in enumerate(ours.facts):
        for deed, path, meetings, step in facts.get("files", []):
            deeds.setdefault((path, meetings, step), []).append((rank, deed))
    for (path, _, step), found in deeds.items():
        for rank, deed in found:
            other = next((one for one in found if one[0] != rank and (one[1], deed) != (_REMOVES, _REMOVES)), None)
            if other is not None and deed != _READS:
                name = path.rpartition("/")[2]
                why = "rank %d %s %s and rank %d %s it, but no barrier or other collective separates the two" % (
                    rank, deed, name, other[0], other[1])  # fmt: skip
                meaning = (
                    "either may come first: the file may not exist yet, be half written, or be an older one; "
                    "put torch.distributed.barrier() between the two"
                )
                return Wrong(max(1, step), name, 0.0, why, meaning)
    return None


def _stale(ours: Recorded) -> Optional[Wrong]:
    """Return a parameter that an optimizer has, that is in no model, and that never gets a gradient."""
    facts = ours.facts[0] if ours.facts else {}
    if ours.rows and not any(row["norms"] for row in ours.rows) and not facts.get("unowned"):
        meaning = (
            "the optimizer changes nothing: the script removes the gradients before the step, or computes gradients of "
            "other parameters"
        )
        return Wrong(1, "", 0.0, "no parameter of the optimizer has a gradient in any step", meaning)
    for name in facts.get("unowned", []):
        if ours.rows and not any(name in row["norms"] for row in ours.rows):
            why = "%s of the optimizer is in no model, and never has a gradient" % name
            meaning = (
                "the optimizer was made before the model got its present parameters: wrap or shard the model "
                "first, then make the optimizer from its parameters"
            )
            return Wrong(1, name, 0.0, why, meaning)
    return None


def _uneven(ours: Recorded) -> Optional[Wrong]:
    """Return where ranks do not step together: one steps, and another goes on to its next backward pass."""
    counts = [len(rows) for rows in ours.by_rank]
    skipped = next((row for row in ours.rows if _are_apart(row) and not _are_apart(ours.rows[0])), None)
    if skipped is not None:
        passes = [rank["passes"] for rank in skipped["ranks"]]
        step, what = skipped["step"], "a step comes after %s backward passes" % " and ".join(str(one) for one in passes)
    elif min(counts) and len(set(counts)) > 1:
        step, what = min(counts) + 1, "they make %s" % " and ".join(str(count) for count in counts)
    else:
        return None
    why = "the ranks do not make the same optimizer steps: %s, on ranks %s" % (
        what, ", ".join(str(rank) for rank in range(ours.num_ranks)))  # fmt: skip
    meaning = (
        "each rank decides by itself whether it steps: a gradient scaler finds an overflow in its own "
        "gradients, or the end depends on its own samples; decide together, by an all-reduce"
    )
    return Wrong(step, "", 0.0, why, meaning)


def _are_apart(row: Row) -> bool:
    return len({rank["passes"] for rank in row["ranks"]}) > 1


def _same_epoch(ours: Recorded) -> Optional[Wrong]:
    """Return a sampler that shuffles every epoch in the same way."""
    for facts in ours.facts[:1]:
        for loader in facts.get("loaders", []):
            deals, epochs = loader["deals"], loader["epochs"]
            is_shuffled = deals and deals["is_torchs"] and deals["shuffle"] and loader["is_for_training"]
            if is_shuffled and len(epochs) > 1 and len(set(epochs)) == 1:
                why = "the order of the samples: all %d epochs are shuffled as epoch %d" % (len(epochs), epochs[0])
                meaning = (
                    "every epoch has the same batches: call sampler.set_epoch(epoch) before each pass over the loader"
                )
                return Wrong(loader["began"][1], "order of the samples", 0.0, why, meaning)
    return None


def samples(row: Row) -> int:
    """Return how many samples a step has, those that every rank has counted once; 0: they were not seen."""
    ranks = row["ranks"]
    if len({rank["digest"] for rank in ranks}) == 1:
        return int(ranks[0]["samples"])
    return sum(int(rank["samples"]) for rank in ranks)


def digest(row: Row) -> int:
    """Return what tells the samples of a step from others, those that every rank has counted once."""
    found = [rank["digest"] for rank in row["ranks"]]
    return int(found[0] if len(set(found)) == 1 else sum(found)) % DIGESTS


def same_samples(case: Case) -> Dict[str, str]:
    """Say where whole copies of the model are all trained on the same samples: N ranks then do the work of one."""
    seen = [row["ranks"] for row in case.ours.rows if row["ranks"][0]["samples"]]
    if not case.is_own or not seen or any(len({rank["digest"] for rank in ranks}) > 1 for ranks in seen):
        return {}
    if case.ours.about.get("num_sharded") or case.ours.cuts or not _are_copies(case.ours):
        return {}  # ranks that share a layer share its samples
    if any(len({rank["loss"] for rank in row["ranks"]}) > 1 for row in case.ours.rows[:2]):
        return {}  # each takes its part of a batch that all have
    why = "all %d ranks train on the same samples, so together they do the work of one rank" % case.num_ranks
    hint = "distribute the samples: DataLoader(dataset, batch_size, sampler=DistributedSampler(dataset))"
    return {"why": why, "hint": hint}


def _are_copies(ours: Recorded) -> bool:
    """Say whether every rank has the same parameters."""
    return len({frozenset(start) for start in ours.tensors(1, "start")}) == 1


def other_samples(case: Case) -> Dict[str, str]:
    """Say where a step of several ranks has more samples than one of a single process: these are two trainings."""
    for one, ours in zip(case.one.rows, case.ours.rows):  # noqa: B905
        single, several = samples(one), samples(ours)
        if single and several and single != several:
            why = "a step of one process has %d samples, but a step of %d ranks together has %d" % (
                single, case.num_ranks, several,
            )  # fmt: skip
            if several == single * case.num_ranks:
                why += ": the script's batch is the batch of one rank, so more ranks train with a larger batch"
            hint = (
                "give each rank its part of one global batch, if the script takes its batch size as an "
                "argument: echelon prove --global-batch %d … train.py --batch-size {batch_per_rank}" % several
            )
            return {"why": why, "hint": hint} if one["step"] == 1 else {}
    return {}


def of_words(case: Case) -> Optional[Wrong]:
    """Return a number that the script prints of an evaluation and that one device does not."""
    one, again, ours = (_numbers(of.facts[0]) for of in (case.one, case.again, case.ours))
    for key, (step, number, _) in one.items():
        if key not in ours or key not in again or _is_of_training(case.one, step, number):
            continue
        stray = relative(number, again[key][1])
        apart = relative(number, ours[key][1])
        if stray <= 0.01 and apart > max(_PRINTED, 16 * stray):
            what = key[0].partition("#")[0].strip(" :=,([") or "a number"
            why = "%r is %g on several ranks, but %g on one device, after step %d" % (
                what, ours[key][1], number, step)  # fmt: skip
            return Wrong(step, what, ours[key][1] / number if number else 0.0, why, _of_evaluation(case, ours[key]))
    return None


def _is_of_training(one: Recorded, step: int, number: float) -> bool:
    """Say whether a number is the loss of some last steps: a rank may well say its own."""
    losses = [float(row["loss"] or 0.0) for row in one.rows[:step]][::-1]
    sums = list(itertools.accumulate(losses))
    known = [*sums, *(total / (place + 1) for place, total in enumerate(sums))]
    return any(relative(number, value) <= _PRINTED for value in known)


def _numbers(facts: Dict[str, Any]) -> Dict[Tuple[str, int, int], Tuple[int, float, int]]:
    """Return the printed numbers by the text they stand in, its place in it and how often it was said before."""
    found: Dict[Tuple[str, int, int], Tuple[int, float, int]] = {}
    counts: Dict[str, int] = {}
    for step, meetings, text in facts.get("said", []):
        around = _NUMBER.sub("#", text)
        if _OF_TIME.search(around):
            continue
        counts[around] = counts.get(around, 0) + 1
        for place, word in enumerate(_NUMBER.findall(text)):
            found[("#".join(around.split("#")[place:]), place, counts[around])] = (step, float(word), meetings)
    return found


def _of_evaluation(case: Case, said: Tuple[int, float, int]) -> str:
    step, _, meetings = said
    one = next(_evaluations(case.one.facts[0], step), None)
    mine = [next(_evaluations(facts, step), None) for facts in case.ours.facts]
    if one is None or mine[0] is None:
        return "it is computed from other samples than on one device"
    total = sum(each["samples"] for each in mine if each)
    drawn = [sample for each in mine if each for sample in each["drawn"]]
    if mine[0]["samples"] < one["samples"] and meetings == mine[0]["meetings"]:
        return (
            "it is computed from only the %d samples of rank 0, of %d samples: add up the counts of all ranks "
            "by an all-reduce before you report it" % (mine[0]["samples"], one["samples"])
        )
    if total > one["samples"] and len(set(drawn)) < len(drawn):
        return (
            "%d of %d samples are evaluated twice: DistributedSampler repeats some so that every rank has the "
            "same number; leave the repeated samples out of the count" % (total - one["samples"], total)
        )
    return (
        "each rank's mean has the same weight, but the means are over different numbers of samples: sum values "
        "and counts over the ranks, then divide"
    )


def _evaluations(facts: Dict[str, Any], step: int) -> Iterator[Row]:
    return (one for one in reversed(facts.get("evaluations", [])) if one["step"] == step)
