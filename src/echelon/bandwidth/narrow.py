"""Find the slow nodes among many: each round measures groups of nodes at the same time, and splits slow groups.

A group is slow if one of its nodes is slow, or the network between two of its nodes. A node that was in a fast group is
well. A node that was slow beside a well node is bad.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

Group = tuple[int, ...]
Measure = Callable[[Sequence[Group]], Sequence[bool]]


class Narrowed(NamedTuple):
    """The result of all rounds."""

    bad: tuple[int, ...]
    undecided: tuple[int, ...]  # in slow groups only, and never beside a node that is well
    between: tuple[Group, ...]  # slow together, and each node well with others: the network between them is slow
    num_rounds: int


def most_rounds(num_nodes: int) -> int:
    """Return the greatest number of rounds: the base-2 logarithm of the number of nodes, rounded up, plus one."""
    return (num_nodes - 1).bit_length() + 1 if num_nodes > 0 else 0


def narrow(num_nodes: int, is_slow: Measure) -> Narrowed:
    """Return the slow nodes; `is_slow` takes the disjoint groups of a round, and says for each whether it is slow."""
    state = _State(num_nodes)
    num_rounds = 0
    while num_rounds < most_rounds(num_nodes):
        groups = state.next_groups(num_rounds)
        if not groups:
            break
        state.learn(groups, is_slow(groups))
        num_rounds += 1
    between = tuple(sorted(tuple(sorted(group)) for group in state.slow if group <= state.well))
    return Narrowed(tuple(sorted(state.bad)), tuple(state.undecided), between, num_rounds)


class _State:
    """The nodes that are known to be well or bad, and the groups that were slow."""

    def __init__(self, num_nodes: int) -> None:
        self._nodes = range(num_nodes)
        self.well: set[int] = set()
        self.bad: set[int] = set()
        self.slow: set[frozenset[int]] = set()
        self._met: set[frozenset[int]] = set()
        self._fast_alone: set[int] = set()

    @property
    def unknown(self) -> list[int]:
        return [node for node in self._nodes if node not in self.well and node not in self.bad]

    @property
    def undecided(self) -> list[int]:
        """Return the unknown nodes, except nodes that are fast alone and slow only beside a bad node."""
        return [node for node in self.unknown if node not in self._fast_alone or not self._is_excused(node)]

    def _is_excused(self, node: int) -> bool:
        return all(members & self.bad for members in self.slow if node in members)

    def next_groups(self, num_rounds: int) -> list[Group]:
        """Return the groups of the next round; none when a measurement can show nothing new."""
        if num_rounds == 0:
            return _pairs(list(self._nodes))
        unknown = self.unknown
        if not unknown:
            return []
        well = sorted(self.well)
        beside: list[Group] = [(unknown[place], well[place]) for place in range(min(len(unknown), len(well)))]
        return beside + self._strangers(unknown[len(beside) :])

    def _strangers(self, nodes: list[int]) -> list[Group]:
        """Pair nodes that were not paired before; a node without such a partner is measured alone."""
        groups: list[Group] = []
        left = list(nodes)
        while left:
            node = left.pop(0)
            partner = next((each for each in left if frozenset((node, each)) not in self._met), None)
            if partner is not None:
                left.remove(partner)
                groups.append((node, partner))
            elif frozenset((node,)) not in self._met:
                groups.append((node,))
        return groups

    def learn(self, groups: Sequence[Group], slow: Sequence[bool]) -> None:
        for place, group in enumerate(groups):
            members = frozenset(group)
            self._met.add(members)
            if slow[place]:
                self.slow.add(members)
            elif len(group) > 1:
                self.well |= members
            else:  # a node alone shows nothing about its network
                self._fast_alone |= members
        for members in self.slow:
            rest = members - self.well
            if len(rest) == 1:
                self.bad |= rest
        self.bad -= self.well
        self._decide_without_witness()

    def _decide_without_witness(self) -> None:
        """Call a node bad that was slow alone, or that three slow groups of three nodes have in common."""
        for members in self.slow:
            if len(members) == 1 and not members & self.well:
                self.bad |= members
        pairs = [members for members in self.slow if len(members) > 1]
        if self.well or len(self._nodes) != 3 or len(pairs) < 3:
            return
        common = frozenset.intersection(*pairs)  # the group of all three nodes and two pairs contain the slow node
        if len(common) == 1:
            self.bad |= common


def _pairs(nodes: list[int]) -> list[Group]:
    """Return neighbours in pairs, the last three together where the number is odd."""
    if len(nodes) < 2:
        return [tuple(nodes)] if nodes else []
    pairs: list[Group] = [(nodes[index], nodes[index + 1]) for index in range(0, len(nodes) - 1, 2)]
    if len(nodes) % 2:
        pairs[-1] = (*pairs[-1], nodes[-1])
    return pairs


def by_round(num_nodes: int, is_slow: Measure) -> tuple[Narrowed, list[dict[Group, bool]]]:
    """Return the result of `narrow`, and for each round its groups with whether they were slow."""
    rounds: list[dict[Group, bool]] = []

    def listen(groups: Sequence[Group]) -> Sequence[bool]:
        answers = list(is_slow(groups))
        rounds.append({group: answers[place] for place, group in enumerate(groups)})
        return answers

    return narrow(num_nodes, listen), rounds
