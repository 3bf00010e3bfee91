"""Find the optimizer whose step ends a round of a loop without a loader."""

from typing import List, Optional, Set

_PATIENCE = 32
"""So many steps after the last round the optimizer is looked for again: a script may make new ones in each round."""


class Rounds:
    """The order in which optimizers step.

    >>> rounds = Rounds()
    >>> [rounds.ends(one) for one in [1, 2, 1, 2, 1, 2]]
    [False, False, False, True, False, True]
    """

    def __init__(self) -> None:
        self._last: Optional[int] = None
        """The optimizer that ends a round; None: not known yet."""
        self._seen: List[int] = []
        self._before: Set[int] = set()
        """What stepped before the last search: what is not among them may be new in each round."""
        self._since = 0

    def ends(self, optimizer: int) -> bool:
        """Say whether this step of an optimizer, named by a number, ends a round."""
        self._since += 1
        if self._since > _PATIENCE:
            self._before, self._seen, self._last, self._since = {*self._seen, *self._before}, [], None, 0
        if self._last is None:
            self._look(optimizer)
        if optimizer != self._last:
            self._note(optimizer)
            return False
        self._since = 0
        return True

    def _look(self, optimizer: int) -> None:
        lasting = [one for one in self._seen if not self._before or one in self._before]
        if optimizer in lasting:
            self._last = lasting[-1]

    def _note(self, optimizer: int) -> None:
        if len(self._seen) < 2 * _PATIENCE:
            self._seen.append(optimizer)
