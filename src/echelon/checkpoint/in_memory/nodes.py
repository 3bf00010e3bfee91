"""Which rank is on which node, and which rank of the next node keeps its share too."""

from typing import Dict, List, Sequence


class Nodes:
    """The nodes of a run, each known by a text that only its ranks have.

    >>> nodes = Nodes(["a", "a", "b", "b"])
    >>> [nodes.keeper_of(rank) for rank in range(4)], nodes.kept_by(0), nodes.leaders
    ([2, 3, 0, 1], [2], [0, 2])
    """

    def __init__(self, node_of_ranks: Sequence[str]) -> None:
        self._node_of_ranks = list(node_of_ranks)
        self._ranks: Dict[str, List[int]] = {}
        for rank, node in enumerate(node_of_ranks):
            self._ranks.setdefault(node, []).append(rank)
        self._names = list(self._ranks)

    @property
    def are_many(self) -> bool:
        """Say whether there is more than one node."""
        return len(self._names) > 1

    @property
    def leaders(self) -> List[int]:
        """Return the first rank of each node."""
        return [ranks[0] for ranks in self._ranks.values()]

    def ranks_beside(self, rank: int) -> List[int]:
        """Return the ranks of a rank's node."""
        return self._ranks[self._node_of_ranks[rank]]

    def leader_of(self, rank: int) -> int:
        """Return the first rank of a rank's node."""
        return self.ranks_beside(rank)[0]

    def keeper_of(self, rank: int) -> int:
        """Return the rank of the next node that keeps a rank's share."""
        place = self.ranks_beside(rank).index(rank)
        number = self._names.index(self._node_of_ranks[rank])
        others = self._ranks[self._names[(number + 1) % len(self._names)]]
        return others[place % len(others)]

    def kept_by(self, rank: int) -> List[int]:
        """Return the ranks whose shares a rank keeps for their node."""
        number = self._names.index(self._node_of_ranks[rank])
        return [other for other in self._ranks[self._names[number - 1]] if self.keeper_of(other) == rank]
