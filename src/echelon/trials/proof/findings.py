"""Mistakes that no tensor shows: a run shows them by itself, or by its files, epochs and samples."""

import itertools

from echelon.orders.records import NUM_DIGESTS, READS, REMOVES
from echelon.trials.proof.evidence import FirstDifference, RecordedRun, Recordings, Row


def alone(several: RecordedRun) -> FirstDifference | None:
    """Return a mistake that needs no comparison with one device."""
    return _race(several) or _stale(several) or _uneven(several) or _same_epoch(several)


def _race(several: RecordedRun) -> FirstDifference | None:
    """Return a file that one rank changes while another uses it, without a collective between the two."""
    uses: dict[tuple[str, int, int], list[tuple[int, str]]] = {}
    for rank, facts in enumerate(several.facts):
        for deed, path, meetings, step in facts.get("files", []):
            uses.setdefault((path, meetings, step), []).append((rank, deed))
    for (path, _, step), deeds in uses.items():
        for (rank, deed), (other, other_deed) in itertools.product(deeds, deeds):
            if rank == other or deed == READS or (deed, other_deed) == (REMOVES, REMOVES):
                continue
            name = path.rpartition("/")[2]
            why = (
                f"rank {rank} {deed} {name} and rank {other} {other_deed} it, but no barrier or other collective "
                "separates the two"
            )
            meaning = (
                "either may come first: the file may not exist yet, be half written, or be an older one; "
                "put torch.distributed.barrier() between the two"
            )
            return FirstDifference(max(1, step), name, 0.0, why, meaning)
    return None


def _stale(several: RecordedRun) -> FirstDifference | None:
    """Return a parameter that an optimizer has, that is in no model, and that never gets a gradient."""
    unowned = several.facts[0].get("unowned", []) if several.facts else []
    if several.rows and not any(row["norms"] for row in several.rows) and not unowned:
        meaning = (
            "the optimizer changes nothing: the script removes the gradients before the step, or computes gradients of "
            "other parameters"
        )
        return FirstDifference(1, "", 0.0, "no parameter of the optimizer has a gradient in any step", meaning)
    for name in unowned:
        if several.rows and not any(name in row["norms"] for row in several.rows):
            why = f"{name} of the optimizer is in no model, and never has a gradient"
            meaning = (
                "the optimizer was made before the model got its present parameters: wrap or shard the model "
                "first, then make the optimizer from its parameters"
            )
            return FirstDifference(1, name, 0.0, why, meaning)
    return None


def _uneven(several: RecordedRun) -> FirstDifference | None:
    """Return a step that not all ranks make: one rank steps, and another goes on to its next backward pass."""
    counts = [len(rows) for rows in several.by_rank]
    skipped = next((row for row in several.rows if _is_skipped(row) and not _is_skipped(several.rows[0])), None)
    if skipped is not None:
        passes = " and ".join(str(rank["passes"]) for rank in skipped["ranks"])
        step, which = skipped["step"], f"a step comes after {passes} backward passes"
    elif min(counts) and len(set(counts)) > 1:
        step, which = min(counts) + 1, "they make " + " and ".join(map(str, counts))
    else:
        return None
    ranks = ", ".join(map(str, range(several.num_ranks)))
    why = f"the ranks do not make the same optimizer steps: {which}, on ranks {ranks}"
    meaning = (
        "each rank decides by itself whether it steps: a gradient scaler finds an overflow in its own "
        "gradients, or the end depends on its own samples; decide together, by an all-reduce"
    )
    return FirstDifference(step, "", 0.0, why, meaning)


def _is_skipped(row: Row) -> bool:
    return len({rank["passes"] for rank in row["ranks"]}) > 1


def _same_epoch(several: RecordedRun) -> FirstDifference | None:
    """Return a sampler that shuffles every epoch in the same way."""
    for facts in several.facts[:1]:
        for loader in facts.get("loaders", []):
            deals, epochs = loader["deals"], loader["epochs"]
            is_shuffled = deals and deals["is_torchs"] and deals["shuffle"] and loader["is_for_training"]
            if is_shuffled and len(epochs) > 1 and len(set(epochs)) == 1:
                why = f"the order of the samples: all {len(epochs)} epochs are shuffled as epoch {epochs[0]}"
                meaning = (
                    "every epoch has the same batches: call sampler.set_epoch(epoch) before each pass over the loader"
                )
                return FirstDifference(loader["began"][1], "order of the samples", 0.0, why, meaning)
    return None


def digest(row: Row) -> int:
    """Return the digest of the samples of a step, counted once where all ranks have the same samples."""
    return _summed(row, "digest") % NUM_DIGESTS


def _summed(row: Row, key: str) -> int:
    ranks = row["ranks"]
    is_shared = len({rank["digest"] for rank in ranks}) == 1
    return sum(int(rank[key]) for rank in (ranks[:1] if is_shared else ranks))


def same_samples(case: Recordings) -> dict[str, str]:
    """Detect whole copies of the model that all train on the same samples: N ranks then do the work of one."""
    seen = [row["ranks"] for row in case.several.rows if row["ranks"][0]["samples"]]
    if not case.is_own or not seen or any(len({rank["digest"] for rank in ranks}) > 1 for ranks in seen):
        return {}
    are_copies = len({frozenset(start) for start in case.several.tensors(1, "start")}) == 1
    if case.several.about.get("num_sharded") or case.several.cuts or not are_copies:
        return {}  # ranks that share a layer share its samples
    if any(len({rank["loss"] for rank in row["ranks"]}) > 1 for row in case.several.rows[:2]):
        return {}  # each takes its part of a batch that all have
    why = f"all {case.num_ranks} ranks train on the same samples, so together they do the work of one rank"
    hint = "distribute the samples: DataLoader(dataset, batch_size, sampler=DistributedSampler(dataset))"
    return {"why": why, "hint": hint}


def other_samples(case: Recordings) -> dict[str, str]:
    """Detect a step of several ranks with another number of samples than one process has: these are two trainings."""
    for oracle, several in zip(case.oracle.rows, case.several.rows, strict=False):
        of_one, of_several = _summed(oracle, "samples"), _summed(several, "samples")
        if of_one and of_several and of_one != of_several:
            why = (
                f"a step of one process has {of_one} samples, but a step of {case.num_ranks} ranks together has "
                f"{of_several}"
            )
            if of_several == of_one * case.num_ranks:
                why += ": the script's batch is the batch of one rank, so more ranks train with a larger batch"
            hint = (
                "give each rank its part of one global batch, if the script takes its batch size as an "
                f"argument: echelon prove --global-batch {of_several} … train.py --batch-size {{batch_per_rank}}"
            )
            return {"why": why, "hint": hint} if oracle["step"] == 1 else {}
    return {}
