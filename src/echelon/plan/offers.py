"""The hints of a refusal: each was tried and accepted before it is shown."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields

from echelon.errors import UsageError
from echelon.plan.candidates import changed
from echelon.plan.misfit import Alternative, Misfit
from echelon.spec import Request
from echelon.units import slurm_size, slurm_time

MOST_TRIALS = 300  # for one hint; no known machine needs 50
OPTIONS = {
    "num_devices": "--gpus",
    "devices_per_node": "--gpus-per-node",
    "num_nodes": "--nodes",
    "minutes": "--time",
    "cores_per_device": "--cores-per-gpu",
    "cpus_per_rank": "--cpus-per-task",
    "memory_bytes_per_device": "--mem-per-gpu",
    "memory_bytes_per_node": "--mem",
    "global_batch": "--global-batch",
    "chip": "--chip",
    "partition": "--partition",
    "qos": "--qos",
}
"""The option of each field that a hint may change, in the order of output."""

Judge = Callable[[Request], object]  # return for an accepted request; raise UsageError for any other


def hint(misfit: Misfit, asked: Request, judge: Judge) -> str:
    """Return options to type instead of, or beside, the requested ones; empty if none is accepted."""
    texts: dict[str, str] = {}
    for way in misfit.ways:
        if way.is_last_resort and texts:
            break
        offer = accepted_request(asked, way, judge)
        text = written(asked, offer) if offer is not None else ""
        if text:
            texts.setdefault(text, way.label)
        if len(texts) == misfit.num_shown:
            break
    first, *others = ((f", {label}: " if label else " ") + text for text, label in texts.items()) if texts else ("",)
    return "   or".join([first.lstrip(" ,"), *others])


def accepted_request(asked: Request, way: Alternative, judge: Judge) -> Request | None:
    """Apply a way, repair the result until it is accepted, and return it; None if that fails."""
    offer = _settled(asked, way, judge, {asked} if way.changes else set())
    if offer is None or asked.partition or not offer.partition:
        return offer
    unnamed = changed(offer, [("partition", "")])
    return unnamed if unnamed != asked and _is_accepted(unnamed, judge) else offer


def _settled(asked: Request, way: Alternative, judge: Judge, tried: set[Request]) -> Request | None:
    trial = changed(asked, way.changes)
    if trial in tried or len(tried) > MOST_TRIALS or not _can_be_typed(asked, trial):
        return None
    tried.add(trial)
    try:
        judge(trial)
    except Misfit as misfit:
        offers = (_settled(trial, next_way, judge, tried) for next_way in misfit.ways)
        return next((offer for offer in offers if offer is not None), None)
    except UsageError:
        return None
    return trial


def _is_accepted(request: Request, judge: Judge) -> bool:
    try:
        judge(request)
    except UsageError:
        return False
    return True


def _can_be_typed(before: Request, after: Request) -> bool:
    """Say whether options can express the change: they can add or replace a value, but not remove one."""
    return not any(getattr(before, name) and not getattr(after, name) for name in OPTIONS)


def written(asked: Request, offer: Request) -> str:
    """Return the options in which an offer differs from the request."""
    names = [row.name for row in fields(Request) if getattr(asked, row.name) != getattr(offer, row.name)]
    return " ".join(f"{OPTIONS[name]} {_value(name, getattr(offer, name))}" for name in OPTIONS if name in names)


def _value(field: str, value: int | str) -> str:
    if field == "minutes":
        return slurm_time(int(value))
    return slurm_size(int(value)) if field.startswith("memory_bytes") else str(value)
