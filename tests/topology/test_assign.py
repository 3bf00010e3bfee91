"""What `assign` promises holds on any node, allocation and order of devices."""

import random
from collections.abc import Iterable
from typing import NamedTuple

from hypothesis import example, given, settings
from hypothesis import strategies as st
from tests.tiers import pick

from echelon.hardware.answers import Device
from echelon.topology import binding
from echelon.topology.devices import LOCAL, REMOTE
from echelon.topology.node import Cpu, Node

MOST_STATES = 4000  # of the slow, certain search for the least total distance


class Case(NamedTuple):
    """One question to `assign`."""

    node: Node
    devices: list[Device | None]
    allowed: tuple[int, ...]
    reserved: tuple[int, ...]
    shares: int | None


def make_node(shape: tuple[int, int, int, int, int], chance: random.Random) -> Node:
    sockets, domains, caches, cores, threads = shape
    total = sockets * domains * caches * cores
    beside = chance.random() < 0.3  # siblings numbered side by side, as some BIOSes do
    numa_known = chance.random() < 0.85
    cpus = []
    for core in range(total):
        cache, numa = core // cores, core // (cores * caches)
        numbers = [core * threads + each if beside else core + total * each for each in range(threads)]
        first = cache * cores * threads if beside else cache * cores
        cpus += [Cpu(number, numbers[0], numa // domains, numa if numa_known else -1, first) for number in numbers]
    num_domains = sockets * domains
    far = [[chance.choice((12, 16, 20, 21, 32)) for _ in range(num_domains)] for _ in range(num_domains)]
    distances = {
        one: {other: 10 if one == other else far[min(one, other)][max(one, other)] for other in range(num_domains)}
        for one in range(num_domains)
    }
    cpus.sort()
    everything = tuple(cpu.number for cpu in cpus)
    if chance.random() < 0.2:
        distances = {}
    return Node("n", tuple(cpus), everything, distances if numa_known else {}, {}, (), (), ())


def make_device(number: int, node: Node, chance: random.Random) -> Device:
    domains = sorted({cpu.numa for cpu in node.cpus})
    numa = chance.choice([*domains, *domains, -1, max(domains) + 1])
    local: Iterable[int] = (cpu.number for cpu in node.cpus if cpu.numa == numa)
    if numa < 0:
        cache = chance.choice(node.cpus).cache
        local = chance.choice([(), tuple(cpu.number for cpu in node.cpus if cpu.cache == cache)])
    return Device(number, "amd", "", "", "", numa, tuple(local), 0, number, True)


def make_case(shape: tuple[int, int, int, int, int], num_ranks: int, seed: int) -> Case:
    chance = random.Random(seed)
    node = make_node(shape, chance)
    pool: list[Device | None] = [make_device(number, node, chance) for number in range(num_ranks)]
    chance.shuffle(pool)
    devices = [None if chance.random() < 0.1 else device for device in pool]
    numbers = [cpu.number for cpu in node.cpus]
    part = chance.random()
    if part < 0.4:
        allowed = tuple(numbers)
    elif part < 0.7:  # a block, as Slurm gives
        low, high = sorted(chance.sample(range(len(numbers) + 1), k=2))
        allowed = tuple(numbers[low:high])
    else:
        allowed = tuple(number for number in numbers if chance.random() < 0.6)
    if chance.random() < 0.05:
        allowed = (*allowed, max(numbers) + 3)  # one that sysfs does not know
    reserved = tuple(chance.sample(numbers, k=len(numbers) // 8)) if chance.random() < 0.3 else ()
    shares = chance.choice([None, None, 1, num_ranks + 2])
    return Case(node, devices, allowed, reserved, shares)


SHAPES = st.tuples(
    st.integers(1, 2), st.integers(1, 4), st.integers(1, 3), st.integers(1, 6), st.sampled_from((1, 1, 2, 4))
)


def physical(case: Case) -> dict[int, set[int]]:
    """Return the usable hardware threads by core."""
    core_of = {cpu.number: cpu.core for cpu in case.node.cpus}
    not_ours = {core_of[number] for number in case.reserved}
    cores: dict[int, set[int]] = {}
    for number in case.allowed:
        if core_of.get(number, number) not in not_ours:
            cores.setdefault(core_of.get(number, number), set()).add(number)
    return cores


def cost(node: Node, thread: int, device: Device | None) -> int:
    """Return the distance of a core from a device, by the definition and not by the code."""
    if device is None or (device.numa < 0 and not device.local_cpus):
        return 0
    if device.numa < 0:
        return LOCAL if thread in device.local_cpus else REMOTE
    domain = next((cpu.numa for cpu in node.cpus if cpu.number == thread), -1)
    if domain < 0:
        return REMOTE
    return node.numa_distances.get(domain, {}).get(device.numa) or (LOCAL if domain == device.numa else REMOTE)


def least_total(case: Case, firsts: list[int], quota: int) -> int:
    """Return the least total distance, by trying every way to give the cores away, core by core."""
    best = {(quota,) * len(case.devices): 0}
    for thread in firsts:
        costs = [cost(case.node, thread, device) for device in case.devices]
        following = dict(best)
        for state, spent in best.items():
            for rank, missing in enumerate(state):
                if missing:
                    less = (*state[:rank], missing - 1, *state[rank + 1 :])
                    total = spent + costs[rank]
                    if total < following.get(less, 1 << 60):
                        following[less] = total
        best = following
    return best[(0,) * len(case.devices)]


@settings(max_examples=pick(100, all=10_000), deadline=None, database=None)
@given(SHAPES, st.integers(1, 8), st.integers(0, 1 << 32))
@example((1, 4, 2, 8, 2), 8, 0)
@example((2, 4, 4, 4, 2), 8, 1)
def test_assign_keeps_its_promises(shape: tuple[int, int, int, int, int], num_ranks: int, seed: int) -> None:
    """Never outside, never overlapping, siblings together, equal shares, and as near as can be."""
    case = make_case(shape, num_ranks, seed)
    given_cpus = binding.assign(
        case.node, case.devices, allowed=case.allowed, reserved=case.reserved, shares=case.shares
    )
    cores = physical(case)
    core_of = {number: core for core, numbers in cores.items() for number in numbers}
    quota = len(cores) // max(num_ranks, case.shares or 0)

    assert len(given_cpus) == num_ranks
    flat = [number for cpus in given_cpus for number in cpus]
    assert set(flat) <= set(core_of)
    assert len(flat) == len(set(flat))
    for cpus in given_cpus:
        mine = {core_of[number] for number in cpus}
        assert len(mine) == quota
        assert set(cpus) == {number for core in mine for number in cores[core]}
        assert list(cpus) == sorted(cpus)
    if quota and (quota + 1) ** num_ranks * len(cores) <= MOST_STATES:
        total = sum(
            cost(case.node, min(cores[core]), device)
            for cpus, device in zip(given_cpus, case.devices, strict=True)
            for core in {core_of[number] for number in cpus}
        )
        assert total == least_total(case, sorted(min(numbers) for numbers in cores.values()), quota)


@settings(max_examples=300, deadline=None, database=None)
@given(SHAPES, st.integers(1, 8), st.integers(0, 1 << 32))
def test_a_device_gets_the_same_cores_in_any_order_of_ranks(
    shape: tuple[int, int, int, int, int], num_ranks: int, seed: int
) -> None:
    """Which rank has a device says nothing about where the device's cores are."""
    case = make_case(shape, num_ranks, seed)
    devices = [device for device in case.devices if device is not None]
    first = dict(zip([device.number for device in devices], binding.assign(case.node, devices), strict=True))
    random.Random(seed).shuffle(devices)
    assert dict(zip([device.number for device in devices], binding.assign(case.node, devices), strict=True)) == first


NUMBERS = st.integers(-3, 40)


@settings(max_examples=pick(100, all=1000), deadline=None, database=None)
@given(
    st.lists(st.builds(Cpu, NUMBERS, NUMBERS, NUMBERS, NUMBERS, NUMBERS), max_size=12),
    st.lists(NUMBERS, max_size=12),
    st.lists(st.tuples(NUMBERS, st.lists(NUMBERS, max_size=5)), max_size=5),
    st.dictionaries(NUMBERS, st.dictionaries(NUMBERS, NUMBERS, max_size=4), max_size=4),
    st.lists(NUMBERS, max_size=4),
    st.one_of(st.none(), NUMBERS),
)
def test_assign_survives_nonsense(
    cpus: list[Cpu],
    allowed: list[int],
    places: list[tuple[int, list[int]]],
    distances: dict[int, dict[int, int]],
    reserved: list[int],
    shares: int | None,
) -> None:
    """A node that cannot be still gives an answer without overlaps, within what is allowed."""
    node = Node("", tuple(cpus), tuple(allowed), distances, {}, (), (), ())
    devices = [Device(1, "", "", "", "", numa, tuple(local), 0, 0, True) for numa, local in places]
    given_cpus = binding.assign(node, [*devices, None], reserved=reserved, shares=shares)
    flat = [number for mine in given_cpus for number in mine]
    assert len(flat) == len(set(flat))
    assert set(flat) <= set(allowed) - set(reserved)
    for device in devices:
        binding.distance(node, allowed, device)


def cpus_of(sizes: list[tuple[int, int]]) -> Node:
    """Return a node of (NUMA domain, cores under one cache)."""
    cpus: list[Cpu] = []
    for numa, size in sizes:
        first = len(cpus)
        cpus += [Cpu(number, number, 0, numa, first) for number in range(first, first + size)]
    return Node("n", tuple(cpus), tuple(cpu.number for cpu in cpus), {}, {}, (), (), ())


def device_at(number: int, numa: int) -> Device:
    return Device(number, "amd", "", "", "", numa, (), 0, number, True)


def test_fewer_cores_than_ranks_binds_nobody() -> None:
    """Where not every rank can have a core, no rank gets any."""
    assert binding.assign(cpus_of([(0, 2)]), [None] * 3) == [(), (), ()]


def test_shares_leave_room_for_ranks_that_are_not_there() -> None:
    """One rank of a node that is meant for four takes a quarter."""
    assert binding.assign(cpus_of([(0, 8)]), [device_at(3, 0)], shares=4) == [(0, 1)]


def test_caches_are_not_split_without_need() -> None:
    """Two ranks with six cores each take them from two caches of seven, not from both."""
    node = cpus_of([(0, 7), (0, 7)])
    assert binding.assign(node, [device_at(0, 0), device_at(1, 0)], shares=2, reserved=(0, 7)) == [
        (1, 2, 3, 4, 5, 6),
        (8, 9, 10, 11, 12, 13),
    ]
    assert binding.assign(cpus_of([(0, 3), (0, 7)]), [device_at(0, 0)], shares=2) == [(3, 4, 5, 6, 7)]


def test_the_kernel_s_local_cores_go_first_within_a_domain() -> None:
    """Where the kernel says which cores of a domain are the device's, these are taken before the others."""
    node = cpus_of([(0, 4), (0, 4)])
    second = device_at(0, 0)._replace(local_cpus=(4, 5, 6, 7))
    assert binding.assign(node, [second], shares=2) == [(4, 5, 6, 7)]
    assert binding.assign(node, [second, device_at(1, 0)]) == [(4, 5, 6, 7), (0, 1, 2, 3)]


def test_rank_without_a_device_takes_what_is_left() -> None:
    """A rank of unknown locality never pushes another one away from its device."""
    node = cpus_of([(0, 4), (1, 4)])
    assert binding.assign(node, [None, device_at(0, 0)]) == [(4, 5, 6, 7), (0, 1, 2, 3)]


def test_reserved_thread_reserves_its_core() -> None:
    """A core with a reserved hardware thread is not half used."""
    cpus = tuple(Cpu(number, number % 4, 0, 0, 0) for number in range(8))
    node = Node("n", cpus, tuple(range(8)), {}, {}, (), (), ())
    assert binding.assign(node, [None], reserved=[0]) == [(1, 2, 3, 5, 6, 7)]


def test_same_device_for_two_ranks() -> None:
    """Ranks that share a device share its near cores."""
    shared = device_at(0, 1)
    assert binding.assign(cpus_of([(0, 4), (1, 4)]), [shared, shared], shares=4) == [(4, 5), (6, 7)]


def test_distance_says_how_far_the_farthest_core_is() -> None:
    """10 is local, 20 the kernel's default for elsewhere, 0 not known."""
    node = cpus_of([(0, 2), (1, 2), (-1, 1)])
    assert binding.distance(node, (0, 1), device_at(0, 0)) == 10
    assert binding.distance(node, (1, 2), device_at(0, 0)) == 20
    assert binding.distance(node, (4,), device_at(0, 0)) == 0
    assert binding.distance(node, (), device_at(0, 0)) == 0
    assert binding.distance(node, (0,), None) == 0
    assert binding.distance(node, (0,), device_at(0, -1)) == 0
    assert binding.distance(node, (0,), device_at(0, -1)._replace(local_cpus=(0, 1))) == 10
    assert binding.distance(node, (0, 2), device_at(0, -1)._replace(local_cpus=(0, 1))) == 20
