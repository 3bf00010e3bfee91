"""Time the operations by which ranks exchange data, for curves over a range of sizes; bandwidths are as in nccl-tests.

The size of an operation is that of the larger buffer of a rank. Algorithm bandwidth is bytes per second. Bus bandwidth
is that times a factor, so that it does not depend on the number of ranks where each rank has one link.
"""

import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

from ..train.wire import device as devices

LEAST_TURNS = 3
MOST_TURNS = 200  # of one size of a curve: a small message takes microseconds
ALL_REDUCE, ALL_GATHER, REDUCE_SCATTER = "all-reduce", "all-gather", "reduce-scatter"
ALL_TO_ALL, POINT_TO_POINT = "all-to-all", "point-to-point"
WORD_BYTES = 4
Act = Callable[[], None]
Check = Callable[[], bool]


class PreparedOperation(NamedTuple):
    """An operation with its buffers."""

    act: Act
    is_right: Check
    """Whether the last act gave what it should; it may be asked once after the first act."""
    num_bytes: int


def time_act(act: Act, device: torch.device, group: Any, seconds: float, most_turns: int) -> float:
    """Return the mean seconds of an act, of the slowest rank; every rank of the group makes equally many turns."""
    first = _timed(act, device, group, 1)
    turns = max(LEAST_TURNS, min(most_turns, int(seconds / max(_most(first, device, group), 1e-6))))
    return _most(_timed(act, device, group, turns) / turns, device, group)


def all_right(is_right: bool, device: torch.device, group: Any) -> bool:
    return _most(float(not is_right), device, group) == 0.0


def _most(value: float, device: torch.device, group: Any) -> float:
    most = torch.tensor([value], dtype=torch.float64, device=device)
    dist.all_reduce(most, dist.ReduceOp.MAX, group=group)
    return float(most)


def _timed(act: Act, device: torch.device, group: Any, turns: int) -> float:
    if dist.get_world_size(group) > 1:
        dist.barrier(group)
    devices.synchronize(device)
    began = time.perf_counter()
    for _ in range(turns):
        act()
    devices.synchronize(device)
    return time.perf_counter() - began


def curve(name: str, sizes: Sequence[int], device: torch.device, seconds: float) -> list[dict[str, Any]]:
    """Return a row for each size; empty if the backend has no such operation."""
    prepare, factor = OPERATIONS[name]
    rank, num_ranks = dist.get_rank(), dist.get_world_size()
    rows = []
    for num_bytes in sizes:
        prepared = prepare(num_bytes, rank, num_ranks, device)
        try:
            prepared.act()
        except (RuntimeError, NotImplementedError) as error:  # on all ranks alike, before anything is sent
            if "support" not in str(error) and "implement" not in str(error):
                raise
            return []
        devices.synchronize(device)
        is_right = all_right(prepared.is_right(), device, None)
        taken = time_act(prepared.act, device, None, seconds, MOST_TURNS)
        taken = taken / 2 if name == POINT_TO_POINT else taken  # there and back
        bandwidth = prepared.num_bytes / taken
        rows.append(
            {
                "bytes": prepared.num_bytes,
                "seconds": taken,
                "algorithm_bytes_per_second": bandwidth,
                "bus_bytes_per_second": bandwidth * factor(num_ranks),
                "is_right": is_right,
            }
        )
    return rows


def _words(num_bytes: int, num_ranks: int) -> int:
    """Return the number of words of a buffer that all ranks can share equally."""
    return max(1, num_bytes // WORD_BYTES // num_ranks) * num_ranks


def _all_reduce(num_bytes: int, rank: int, num_ranks: int, device: torch.device) -> PreparedOperation:
    values = torch.full((max(1, num_bytes // WORD_BYTES),), float(rank + 1), device=device)

    def is_right() -> bool:
        right = bool((values == num_ranks * (num_ranks + 1) / 2).all())
        values.zero_()  # so that it does not grow from turn to turn
        return right

    return PreparedOperation(lambda: _ignore(dist.all_reduce(values)), is_right, values.numel() * WORD_BYTES)


def _all_gather(num_bytes: int, rank: int, num_ranks: int, device: torch.device) -> PreparedOperation:
    number = _words(num_bytes, num_ranks)
    whole = torch.zeros(number, device=device)
    own = torch.full((number // num_ranks,), float(rank), device=device)

    def is_right() -> bool:
        return bool((whole.view(num_ranks, -1) == torch.arange(num_ranks, device=device)[:, None]).all())

    return PreparedOperation(lambda: _ignore(dist.all_gather_into_tensor(whole, own)), is_right, number * WORD_BYTES)


def _reduce_scatter(num_bytes: int, rank: int, num_ranks: int, device: torch.device) -> PreparedOperation:
    number = _words(num_bytes, num_ranks)
    whole = torch.full((number,), float(rank + 1), device=device)
    own = torch.zeros(number // num_ranks, device=device)

    def is_right() -> bool:
        return bool((own == num_ranks * (num_ranks + 1) / 2).all())

    return PreparedOperation(lambda: _ignore(dist.reduce_scatter_tensor(own, whole)), is_right, number * WORD_BYTES)


def _all_to_all(num_bytes: int, rank: int, num_ranks: int, device: torch.device) -> PreparedOperation:
    number = _words(num_bytes, num_ranks)
    sent = torch.full((number,), float(rank), device=device)
    received = torch.zeros(number, device=device)

    def is_right() -> bool:
        return bool((received.view(num_ranks, -1) == torch.arange(num_ranks, device=device)[:, None]).all())

    return PreparedOperation(lambda: _ignore(dist.all_to_all_single(received, sent)), is_right, number * WORD_BYTES)


def _point_to_point(num_bytes: int, rank: int, num_ranks: int, device: torch.device) -> PreparedOperation:
    """Send from rank 0 to the last rank and back, because these are on different nodes if any are."""
    last = num_ranks - 1
    values = torch.full((max(1, num_bytes // WORD_BYTES),), float(rank), device=device)

    def act() -> None:
        if rank == 0:
            dist.send(values, last)
            dist.recv(values, last)
        elif rank == last:
            dist.recv(values, 0)
            dist.send(values, 0)

    return PreparedOperation(
        act, lambda: rank not in (0, last) or bool((values == 0).all()), values.numel() * WORD_BYTES
    )


def _ignore(_: Any) -> None:
    """Drop the handle of a collective, which has ended, or follows in the order of the device."""


Prepare = Callable[[int, int, int, torch.device], PreparedOperation]
OPERATIONS: dict[str, tuple[Prepare, Callable[[int], float]]] = {
    ALL_REDUCE: (_all_reduce, lambda number: 2 * (number - 1) / number),
    ALL_GATHER: (_all_gather, lambda number: (number - 1) / number),
    REDUCE_SCATTER: (_reduce_scatter, lambda number: (number - 1) / number),
    ALL_TO_ALL: (_all_to_all, lambda number: (number - 1) / number),
    POINT_TO_POINT: (_point_to_point, lambda _: 1.0),
}
"""Each operation with the factor from algorithm bandwidth to bus bandwidth: nccl-tests, doc/PERFORMANCE.md."""
