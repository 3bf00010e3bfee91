"""Measure all-reduce on all ranks, then among pairs of nodes until the slow ones are known.

`trials.collective_run` starts it.

Bandwidths are as in nccl-tests: algorithm bandwidth is bytes per second, bus bandwidth is that times 2 (n - 1) / n.
"""

import json
import os
import sys
import time
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

from ..hardware import files
from ..train.wire import device as devices
from ..train.wire import groups as wire_groups
from ..train.wire import messages, world
from . import operations
from .narrow import Group, by_round

FORMAT = 1
MOST_TURNS = 20
NUM_TRIES = 3  # of a group of nodes: what else runs there makes a measurement longer, and never shorter
PAUSES = (0.0, 0.5, 2.0)  # seconds before each measurement of a group that looked slow: other work may have held it up
TIMEOUT_SECONDS = 120.0


class SweepSettings(NamedTuple):
    """The settings of a measurement."""

    sizes: tuple[int, ...]  # bytes, the last one also among pairs
    seconds: float  # for each size
    slow_share: float  # a share of the usual bandwidth: a pair below it is slow
    slow_above: float  # seconds at the usual bus bandwidth; 0: pairs are compared with each other
    operations: tuple[str, ...] = ()  # whose curves are measured, in place of the slow nodes


class Timing(NamedTuple):
    """The time of an all-reduce of one size on one group of ranks."""

    num_bytes: int
    seconds: float  # of one all-reduce, the mean of the turns; the slowest rank's
    num_ranks: int
    is_right: bool

    @property
    def algorithm_bandwidth(self) -> float:
        return self.num_bytes / self.seconds if self.seconds > 0 else 0.0

    @property
    def bus_bandwidth(self) -> float:
        return self.algorithm_bandwidth * 2 * (self.num_ranks - 1) / self.num_ranks


def main(arguments: Sequence[str], environ: Mapping[str, str]) -> None:
    """Measure, and write the result into a file on rank 0, completely or not at all."""
    path, sizes, seconds, slow_share, slow_above, *names = arguments
    asked = SweepSettings(
        tuple(map(int, sizes.split(","))), float(seconds), float(slow_share), float(slow_above), tuple(names)
    )
    here = world.read(environ)
    wire_groups.form(here.device, timeout=timedelta(seconds=TIMEOUT_SECONDS))
    try:
        result = measure(asked, here.device, int(environ.get("GROUP_RANK", "0")))
        if dist.get_rank() == 0:
            with open(path + ".part", "w", encoding="utf-8") as file:
                json.dump(result, file)
            os.replace(path + ".part", path)
    finally:
        dist.destroy_process_group()


def measure(asked: SweepSettings, device: torch.device, node: int) -> dict[str, Any]:
    """Return all timings, the slow nodes by number, and the libraries and interfaces that moved the bytes."""
    nodes = messages.gather(node)
    before = traffic()
    curves = {name: operations.curve(name, asked.sizes, device, asked.seconds) for name in asked.operations}
    sizes = asked.sizes if not asked.operations else ()
    sweep = [time_all_reduce(num_bytes, device, None, asked.seconds) for num_bytes in sizes]
    after = traffic()
    ranks_of = {each: [rank for rank, of in enumerate(nodes) if of == each] for each in sorted(set(nodes))}
    rounds: list[dict[str, Any]] = []
    narrowed: dict[str, Any] = {}
    if len(ranks_of) > 1 and not asked.operations:
        narrowed, rounds = _narrowed(asked, device, ranks_of)
    moved = {name: after[name] - count for name, count in before.items() if after.get(name, 0) > count}
    used = messages.gather((node, libraries("/proc/self/maps"), moved))
    return {
        "format": FORMAT,
        "device": devices.name(device),
        "backend": devices.backends(device).rpartition(":")[2],
        "num_ranks": len(nodes),
        "nodes": sorted(ranks_of),
        "sweep": [_row(timing) for timing in sweep] or curves.get(operations.ALL_REDUCE, []),
        "curves": curves,
        "rounds": rounds,
        "slow": narrowed,
        "libraries": {str(of): _of_node(of, used) for of in ranks_of},
        "traffic": {str(of): moved for of, _, moved in used},
    }


def _of_node(node: int, used: Sequence[tuple[int, list[str], dict[str, int]]]) -> list[str]:
    return sorted({name for of, names, _ in used if of == node for name in names})


def time_all_reduce(num_bytes: int, device: torch.device, group: Any, seconds: float) -> Timing:
    """Time all-reduces of one size until the time is over; every rank of the group makes the same number of turns."""
    rank, size = dist.get_rank(group), dist.get_world_size(group)
    values = torch.full((max(1, num_bytes // 4),), float(rank + 1), device=device)
    reduce_once(values, group)
    devices.synchronize(device)
    is_right = bool((values == size * (size + 1) / 2).all())
    values.zero_()  # so that it does not grow from turn to turn
    taken = operations.time_act(lambda: reduce_once(values, group), device, group, seconds, MOST_TURNS)
    return Timing(values.numel() * 4, taken, size, operations.all_right(is_right, device, group))


def reduce_once(values: torch.Tensor, group: Any) -> None:
    """All-reduce a tensor; on a group of one rank, copy as many bytes through its memory instead."""
    if dist.get_world_size(group) > 1:
        dist.all_reduce(values, group=group)
    else:
        values.copy_(values.clone())


def _narrowed(
    asked: SweepSettings, device: torch.device, ranks_of: dict[int, list[int]]
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Measure disjoint pairs of nodes at the same time, and split slow groups; every rank gets the same result."""
    numbers = list(ranks_of)
    seconds: dict[Group, float] = {}

    def is_slow(groups: Sequence[Group]) -> list[bool]:
        members = [[rank for place in group for rank in ranks_of[numbers[place]]] for group in groups]
        ours = _Ours(members)
        slow, counts = [True] * len(members), [0] * len(members)
        while True:
            again = [place for place in range(len(members)) if slow[place] and counts[place] < len(PAUSES)]
            if not again:
                break
            time.sleep(max(PAUSES[counts[place]] for place in again))
            for place, taken in ours.measure(asked, device, again).items():
                seconds[groups[place]] = min(seconds.get(groups[place], taken), taken)
                counts[place] += 1
            slow = [_is_slow(group, seconds, asked, device) for group in groups]
        ours.close()
        return slow

    def row(group: Group, slow: bool) -> dict[str, Any]:
        return {"nodes": [numbers[place] for place in group], "seconds": seconds[group], "is_slow": slow}

    result, rounds = by_round(len(numbers), is_slow)
    told = [{"groups": [row(group, slow) for group, slow in groups.items()]} for groups in rounds]
    return {
        "bad": [numbers[place] for place in result.bad],
        "undecided": [numbers[place] for place in result.undecided],
        "between": [[numbers[place] for place in group] for group in result.between],
        "num_rounds": result.num_rounds,
    }, told


def _is_slow(group: Group, seconds: dict[Group, float], asked: SweepSettings, device: torch.device) -> bool:
    """Compare a group with the usual time if it is known, or else with the groups that were measured so far."""
    if asked.slow_above:
        return seconds[group] > asked.slow_above + _noise(device)
    like = sorted(taken for other, taken in seconds.items() if (len(other) > 1) == (len(group) > 1))
    usual = like[(len(like) - 1) // 4]  # the lower quartile: a fast pair's, even if half of the pairs are slow
    return seconds[group] * asked.slow_share > usual and seconds[group] > usual + _noise(device)


def _noise(device: torch.device) -> float:
    """Return the error of a measurement in seconds: on a CPU, a time slice that other work takes."""
    return 0.0002 if devices.is_accelerator(device) else 0.02


class _Ours:
    """The group of this rank among disjoint groups of ranks, which are measured at the same time."""

    def __init__(self, members: Sequence[Sequence[int]]) -> None:
        self._place = next((place for place, ranks in enumerate(members) if dist.get_rank() in ranks), -1)
        # once for all measurements: a group of the same ranks later would find the addresses of the first
        self._group: Any = None
        if self._place >= 0:
            self._group = wire_groups.new(list(members[self._place]), use_local_synchronization=True)

    def measure(self, asked: SweepSettings, device: torch.device, places: Sequence[int]) -> dict[int, float]:
        """Time one size on the groups at these places; return the seconds of each, on every rank."""
        taken = self._time(asked, device) if self._place in places else 0.0
        told = messages.gather((self._place, taken))
        return {each: max(seconds for place, seconds in told if place == each) for each in places}

    def _time(self, asked: SweepSettings, device: torch.device) -> float:
        seconds = asked.seconds / NUM_TRIES
        tries = [time_all_reduce(asked.sizes[-1], device, self._group, seconds) for _ in range(NUM_TRIES)]
        timing = min(tries, key=lambda timing: timing.seconds)
        # a ring of more ranks moves more bytes: bus bandwidths compare groups of different sizes
        factor = 2 * (timing.num_ranks - 1) / timing.num_ranks
        return timing.seconds / factor if factor else timing.seconds

    def close(self) -> None:
        if self._place >= 0:
            dist.destroy_process_group(self._group)


def _row(timing: Timing) -> dict[str, Any]:
    return {
        "bytes": timing.num_bytes,
        "seconds": timing.seconds,
        "algorithm_bytes_per_second": timing.algorithm_bandwidth,
        "bus_bytes_per_second": timing.bus_bandwidth,
        "is_right": timing.is_right,
    }


TELLING = (
    "libnccl.so", "librccl.so", "libnccl-net", "librccl-net", "libfabric", "libcxi", "libibverbs", "libmlx5", "libmpi",
    "libefa", "libucp", "libucs",
)  # fmt: skip
_NET, _VERBS = "/sys/class/net", "/sys/class/infiniband"
_WORD_BYTES = 4  # InfiniBand counts words of four bytes


def libraries(maps: str) -> list[str]:
    """Return the paths of the network libraries that are mapped into a process.

    7f2c4d200000-7f2c4d3c5000 r-xp 00000000 08:02 135522 /opt/lib/libfabric.so.1.18.1
    """
    lines = files.text(maps).splitlines()
    paths = {fields[5] for line in lines if len(fields := line.split(None, 5)) == 6}
    return sorted(path for path in paths if os.path.basename(path).startswith(TELLING))


def traffic(root: str = "/") -> dict[str, int]:
    """Return the bytes that each interface has sent since it came up."""
    counts: dict[str, int] = {}
    net = os.path.join(root, _NET.lstrip("/"))
    for name in files.names(net):
        counts[name] = files.number(files.text(os.path.join(net, name, "statistics/tx_bytes")), 0)
    verbs = os.path.join(root, _VERBS.lstrip("/"))
    for name in files.names(verbs):
        for port in files.names(os.path.join(verbs, name, "ports")):
            counter = os.path.join(verbs, name, "ports", port, "counters/port_xmit_data")
            counts[name] = counts.get(name, 0) + files.number(files.text(counter), 0) * _WORD_BYTES
    return counts


if __name__ == "__main__":
    main(sys.argv[1:], os.environ)
