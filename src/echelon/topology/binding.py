"""Choose the hardware threads of each rank of a node: those nearest to its device."""

from typing import Dict, Iterable, List, NamedTuple, Optional, Sequence, Tuple

from ..hardware.answers import Device
from .cpus import cpu_list, mask, parse_cpu_list
from .devices import LOCAL, REMOTE, between, distance, nearest_nic
from .node import Node

__all__ = ["assign", "cpu_list", "distance", "mask", "nearest_nic", "parse_cpu_list"]

_NUMA_FIRST = 1 << 20  # a step of NUMA distance outweighs being outside local_cpus, for any number of cores


class _Core(NamedTuple):
    """The allowed threads of a physical core."""

    threads: Tuple[int, ...]
    numa: int
    cache: int


class _Locality(NamedTuple):
    """The known location of a device; devices with equal locations form one class."""

    numa: int
    local_cpus: Tuple[int, ...]


class _Share(NamedTuple):
    """The number of cores that a rank takes from a group of cores."""

    place: int  # the rank's place in the order of devices
    group: int
    num_cores: int


_NOWHERE = _Locality(-1, ())


def assign(
    node: Node,
    devices: Sequence[Optional[Device]],
    *,
    allowed: Optional[Iterable[int]] = None,
    reserved: Iterable[int] = (),
    shares: Optional[int] = None,
) -> List[Tuple[int, ...]]:
    """Return the hardware threads of each local rank, given its device (None: it has none).

    Ranks get only `allowed` threads (by default those that the cgroup allows), and no core with a `reserved` thread.
    No two ranks share a core. Each gets the number of cores divided by the number of ranks (or by `shares`, if that is
    more), rounded down. The sum of the distances to the devices is minimal. With fewer cores than ranks all are empty.
    """
    cores = _cores(node, node.allowed if allowed is None else allowed, reserved)
    quota = len(cores) // max(len(devices), shares or 0, 1)
    if quota == 0:
        return [() for _ in devices]
    # Ranks without a device come last, and take the remaining cores.
    order = sorted(range(len(devices)), key=lambda rank: _turn(devices[rank], rank))
    localities = [_locality(devices[rank]) for rank in order]
    groups = _groups(cores, localities)
    shares_of = _near_shares(node, groups, localities, quota)
    free = [len(group) for group in groups]
    for share in shares_of:
        free[share.group] -= share.num_cores
    for place, locality in enumerate(localities):
        if locality == _NOWHERE:
            shares_of += _left_over(free, place, quota)
    chosen = _pick(groups, shares_of)
    result: List[Tuple[int, ...]] = [()] * len(devices)
    for place, rank in enumerate(order):
        result[rank] = tuple(sorted(chosen.get(place, ())))
    return result


def _cores(node: Node, allowed: Iterable[int], reserved: Iterable[int]) -> List[_Core]:
    """Return the usable cores in order; a thread that sysfs does not know counts as a core."""
    known = {cpu.number: cpu for cpu in node.cpus}
    core_of = {number: cpu.core for number, cpu in known.items()}
    not_ours = {core_of.get(number, number) for number in reserved}
    threads: Dict[int, List[int]] = {}
    for number in sorted(set(allowed)):
        core = core_of.get(number, number)
        if core not in not_ours:
            threads.setdefault(core, []).append(number)
    cores = []
    for numbers in threads.values():
        cpu = known.get(numbers[0])
        cores.append(_Core(tuple(numbers), cpu.numa if cpu else -1, cpu.cache if cpu else -1))
    return sorted(cores)


def _turn(device: Optional[Device], rank: int) -> Tuple[bool, bool, int, int]:
    locality = _locality(device)
    return locality == _NOWHERE, device is None, device.number if device else 0, rank


def _locality(device: Optional[Device]) -> _Locality:
    return _Locality(max(device.numa, -1), device.local_cpus) if device is not None else _NOWHERE


def _groups(cores: List[_Core], localities: List[_Locality]) -> List[List[_Core]]:
    """Group cores with equal distances to every device, in the order of each group's first core."""
    sets = [frozenset(cpus) for cpus in sorted({locality.local_cpus for locality in localities if locality.local_cpus})]
    groups: Dict[Tuple[object, ...], List[_Core]] = {}
    for core in cores:
        groups.setdefault((core.numa, *(core.threads[0] in cpus for cpus in sets)), []).append(core)
    return list(groups.values())


def _cost(node: Node, core: _Core, locality: _Locality) -> int:
    """Return the distance of a core from a device: by NUMA, and within a domain by the kernel's local_cpus."""
    outside = bool(locality.local_cpus) and core.threads[0] not in locality.local_cpus
    if locality.numa < 0:
        return (REMOTE if outside else LOCAL) * _NUMA_FIRST
    return (between(node, core.numa, locality.numa) or REMOTE) * _NUMA_FIRST + outside


def _near_shares(node: Node, groups: List[List[_Core]], localities: List[_Locality], quota: int) -> List[_Share]:
    """Return the shares of each rank with a known location, with the least total distance."""
    places: Dict[_Locality, List[int]] = {}
    for place, locality in enumerate(localities):
        if locality != _NOWHERE:
            places.setdefault(locality, []).append(place)
    costs = [[_cost(node, group[0], locality) for group in groups] for locality in places]
    demands = [quota * len(alike) for alike in places.values()]
    amounts = cheapest(demands, [len(group) for group in groups], costs, quota)
    shares: List[_Share] = []
    for index, alike in enumerate(places.values()):
        row, cost = amounts[index], costs[index]
        nearest_first = sorted((group for group, amount in enumerate(row) if amount), key=cost.__getitem__)
        shares += _divide(alike, [(group, row[group]) for group in nearest_first], quota)
    return shares


def _divide(places: List[int], amounts: List[Tuple[int, int]], quota: int) -> List[_Share]:
    """Divide a class's cores among its ranks, with equal shares of near cores: each step waits for the slowest rank."""
    needs = dict.fromkeys(places, quota)
    shares: List[_Share] = []
    for group, amount in amounts:
        left = amount
        for turn, place in enumerate(places):
            count = min(needs[place], -(-left // (len(places) - turn)))
            if count:
                shares.append(_Share(place, group, count))
                needs[place] -= count
                left -= count
    return shares


def _left_over(free: List[int], place: int, quota: int) -> List[_Share]:
    """Take a rank's cores from the remaining ones: from one group that has enough, else from the largest groups."""
    shares: List[_Share] = []
    whole = next((index for index, count in enumerate(free) if count >= quota), None)
    order = [whole] if whole is not None else sorted(range(len(free)), key=lambda index: -free[index])
    for index in order:
        count = min(quota - sum(share.num_cores for share in shares), free[index])
        if count:
            shares.append(_Share(place, index, count))
            free[index] -= count
    return shares


def _pick(groups: List[List[_Core]], shares: List[_Share]) -> Dict[int, List[int]]:
    """Return the hardware threads by place; large shares come first, because few caches can hold them."""
    chosen: Dict[int, List[int]] = {}
    caches: List[Dict[int, List[_Core]]] = []
    for group in groups:
        by_cache: Dict[int, List[_Core]] = {}
        for core in group:
            by_cache.setdefault(core.cache, []).append(core)
        caches.append(by_cache)
    for share in sorted(shares, key=lambda share: (-share.num_cores, share.place)):
        for core in _take(caches[share.group], share.num_cores):
            chosen.setdefault(share.place, []).extend(core.threads)
    return chosen


def _take(by_cache: Dict[int, List[_Core]], count: int) -> List[_Core]:
    """Take cores in order: from one cache that has enough, else from as few caches as possible."""
    whole = next((cache for cache, cores in by_cache.items() if len(cores) >= count), None)
    order = [whole] if whole is not None else sorted(by_cache, key=lambda cache: -len(by_cache[cache]))
    taken: List[_Core] = []
    for cache in order:
        needed = count - len(taken)
        taken += by_cache[cache][:needed]
        by_cache[cache] = by_cache[cache][needed:]
    return taken


_FAR = 1 << 62


def cheapest(demands: List[int], supplies: List[int], costs: List[List[int]], lot: int = 1) -> List[List[int]]:
    """Return the amount that each demand takes of each supply; the total cost is minimal.

    The demands together do not exceed the supplies. Among equally cheap supplies, those that hold a whole `lot` come
    before the others, and otherwise the first comes first.
    """
    flows = [[0] * len(supplies) for _ in demands]
    free = list(supplies)
    for demand, wanted in enumerate(demands):
        while wanted > 0:
            path = _shortest(demand, flows, free, costs, min(lot, wanted))
            if not path:
                break
            amount = min([wanted, free[path[-1][1]], *(flows[row][column] for row, column in _given_back(path))])
            for row, column in path:
                flows[row][column] += amount
            for row, column in _given_back(path):
                flows[row][column] -= amount
            free[path[-1][1]] -= amount
            wanted -= amount
    return flows


def _given_back(path: List[Tuple[int, int]]) -> List[Tuple[int, int]]:
    """Return the amounts that later rows of a path give back: the next row's part of this row's supply."""
    return [(path[index + 1][0], column) for index, (_, column) in enumerate(path[:-1])]


def _shortest(
    start: int, flows: List[List[int]], free: List[int], costs: List[List[int]], lot: int
) -> List[Tuple[int, int]]:
    """Return the cheapest path from a demand to a free supply, as (demand, supply) steps (Bellman and Ford)."""
    rows = [_FAR] * len(flows)
    columns = [_FAR] * len(free)
    row_from = [-1] * len(flows)  # the supply from which a demand was reached
    column_from = [-1] * len(free)
    rows[start] = 0
    changed = [start]
    while changed:
        reached = set()
        for row in changed:
            for column, cost in enumerate(costs[row]):
                if rows[row] + cost < columns[column]:
                    columns[column], column_from[column] = rows[row] + cost, row
                    reached.add(column)
        changed = []
        for column in sorted(reached):
            for row, taken in enumerate(flows):
                price = columns[column] - costs[row][column]
                if taken[column] > 0 and price < rows[row]:
                    rows[row], row_from[row] = price, column
                    changed.append(row)
    ends = [column for column, count in enumerate(free) if count > 0 and columns[column] < _FAR]
    if not ends:
        return []
    column = min(ends, key=lambda end: (columns[end], free[end] < lot, end))
    path = []
    while column >= 0:
        row = column_from[column]
        path.append((row, column))
        column = row_from[row]
    return path[::-1]
