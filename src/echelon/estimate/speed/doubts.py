"""When the time of a step on more devices is not estimated: what is wrong with the runs, and what to do instead."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

from echelon.estimate.speed.runs import STRONG, WEAK, NetworkSpeed, Refusal, SizeRun
from echelon.units import counted

SAME = 0.02
"""Batches that differ by less, as a share, are the same: a last batch may be smaller."""
MOST_GAIN = 1.05
"""A speedup beyond the devices by more than this is a disturbed run, or caches: nothing to go on with."""
LEAST_A_DOUBLING = 0.7
"""Below this efficiency of a doubling, communication rules, which no law here follows."""
LEAST_EFFICIENCY = 0.5


def unlike(runs: Sequence[SizeRun]) -> Refusal | None:
    """Refuse runs of different trainings."""
    for noun, values in (
        ("script", {run.script for run in runs if run.script}),
        ("precision", {run.precision for run in runs if run.precision}),
        ("strategy", {run.strategy for run in runs if run.strategy}),
        ("gradients in bytes", {run.gradient_bytes for run in runs if run.gradient_bytes is not None}),
        ("devices per node", {run.ranks_per_node for run in runs if run.ranks_per_node is not None}),
    ):
        if len(values) > 1:
            listed = " and ".join(str(value) for value in sorted(values, key=str))
            return Refusal(
                reason=f"the runs differ in {noun}: {listed}; so they are not one training at several sizes",
                repair="measure all sizes with the same settings",
            )
    return None


def mode_of(runs: Sequence[SizeRun]) -> str:
    """Return how the batches of the runs change with the devices; empty if they are unknown or do neither."""
    if len(runs) < 2 or any(run.global_batch is None for run in runs):
        return ""
    batches = [run.global_batch or 0.0 for run in runs]
    shares = [batch / run.num_devices for batch, run in zip(batches, runs, strict=True)]
    if max(batches) <= min(batches) * (1 + SAME):
        return STRONG
    return WEAK if max(shares) <= min(shares) * (1 + SAME) else ""


def unclear_mode(runs: Sequence[SizeRun], mode: str) -> Refusal | None:
    """Refuse batches that fit neither kind of scaling, or not the one that was asked for."""
    shown = mode_of(runs)
    known = [run for run in runs if run.global_batch is not None]
    batches = ", ".join(f"{run.global_batch:g} on {counted(run.num_devices, 'device')}" for run in known)
    if len(known) == len(runs) > 1 and (not shown or mode not in ("", shown)):
        wanted = {STRONG: "the same global batch", WEAK: "the same batch for each device"}.get(
            mode, "neither the same global batch nor the same batch for each device"
        )
        have = f"{mode} scaling needs {wanted}" if mode else f"the runs have {wanted}"
        return Refusal(
            reason=f"{have}, and a step had these samples: {batches}",
            repair="measure all sizes with one --global-batch (strong), or one --per-device-batch (weak)",
        )
    if not (mode or shown):
        return Refusal(
            reason="the runs do not tell whether the global batch stays with more devices, or the batch of each device",
            repair="--strong if the global batch stays, --weak if the batch of each device stays",
        )
    return None


def slower(runs: Sequence[SizeRun], mode: str) -> Refusal | None:
    """Refuse sizes if a larger size did less in the same time than a smaller size."""
    for smaller, larger in pairwise(runs):
        gain = _gain(smaller, larger, mode)
        if gain <= 1:
            return Refusal(
                reason=f"{counted(larger.num_devices, 'device')} did {gain:.2f} times the work of "
                f"{smaller.num_devices} in the same time: more devices made it slower, and no law tells how it goes on",
                repair="find the cause first: echelon report RUN, echelon check --collectives",
            )
    return None


def _gain(smaller: SizeRun, larger: SizeRun, mode: str) -> float:
    """Return how many times the work of the smaller size the larger one does in the same time."""
    work = larger.num_devices / smaller.num_devices if mode == WEAK else 1.0
    return work * smaller.step_seconds / larger.step_seconds


def of_pair(smaller: SizeRun | None, larger: SizeRun, mode: str, network: NetworkSpeed | None) -> Refusal | None:
    """Refuse sizes that contradict each other, or that tell too little."""
    if smaller is None:
        return _of_one(larger, mode, network)
    devices = larger.num_devices / smaller.num_devices
    gain = _gain(smaller, larger, mode)
    sizes = f"{counted(smaller.num_devices, 'device')} and {larger.num_devices}"
    if gain > devices * MOST_GAIN:
        return Refusal(
            reason=f"the speedup from {sizes} is {gain:.2f}, and {devices:g} times the devices cannot explain it: one "
            "of the runs was disturbed, or parts fit into caches",
            repair="measure both sizes again",
        )
    if larger.num_devices <= 2 and not larger.is_across():
        return Refusal(
            reason="two devices talk over one link, and more of them over other ones",
            repair="measure one more size, with 4 devices or more",
        )
    share = gain / devices
    if share < LEAST_EFFICIENCY or share ** (1 / math.log2(devices)) < LEAST_A_DOUBLING:
        return Refusal(
            reason=f"from {sizes} only {share:.0%} of the efficiency is left: communication rules, and may grow "
            "suddenly",
            repair="use fewer devices, or a larger batch for each",
        )
    return None


def _of_one(run: SizeRun, mode: str, network: NetworkSpeed | None) -> Refusal | None:
    devices = counted(run.num_devices, "device")
    if mode == STRONG:
        return Refusal(
            reason=f"a single size, {devices}, does not tell which part of a step more devices divide",
            repair=f"measure another size too, such as {2 * run.num_devices} devices",
        )
    if network is None or run.gradient_bytes is None:
        missing = "the machine's network" if network is None else "the size of the gradients"
        return Refusal(
            reason=f"there is a single size, {devices}, and {missing} is not known",
            repair=f"measure another size too, such as {2 * run.num_devices} devices; or name --machine and "
            "--parameters",
        )
    return None


def needs_network(smaller: SizeRun | None, larger: SizeRun, num_devices: int) -> bool:
    """Tell whether a size communicates in a way that the measured ones do not show."""
    is_inside = larger.ranks_per_node is not None and larger.num_devices <= larger.ranks_per_node < num_devices
    return smaller is None or is_inside


def beyond(
    smaller: SizeRun | None, larger: SizeRun, mode: str, network: NetworkSpeed | None, num_devices: int, farthest: int
) -> Refusal | None:
    """Refuse a size that the measured ones do not reach."""
    if num_devices > farthest:
        return Refusal(
            reason=f"{num_devices} devices are more than {farthest // larger.num_devices} times the "
            f"{larger.num_devices} of the largest measured size",
            repair=f"measure a larger size: {-(-num_devices * larger.num_devices // farthest)} devices or more",
        )
    if mode == STRONG and larger.global_batch is not None and num_devices > larger.global_batch:
        return Refusal(
            reason=f"a global batch of {larger.global_batch:g} samples has not one for each of {num_devices} devices",
            repair=f"at most {int(larger.global_batch)} devices, or a larger global batch",
        )
    if not needs_network(smaller, larger, num_devices):
        return None
    if larger.gradient_bytes is None or network is None:
        return Refusal(
            reason=f"{num_devices} devices are on several nodes, and no run was: how fast the network is for this "
            "training is not known",
            repair=f"measure a size on two nodes ({2 * (larger.ranks_per_node or larger.num_devices)} devices); or "
            "name --machine and --parameters",
        )
    if network.all_reduce_seconds(larger.gradient_bytes, num_devices) is None:
        return Refusal(
            reason=f"the machine's file has no bandwidth for {num_devices} devices",
            repair="echelon check --collectives --keep on two nodes, which measures and keeps it",
        )
    return None
