"""Lines of a script that draw inside of a model: whether they draw for each sample, or the same for all.

A size alone does not tell: 8 numbers may be a row for each of 8 samples, or a vector of 8 features. So a model is
computed for parts of its rows (`check/row_trial`), and the sizes that each line asks for show what they follow.
"""

from typing import Any, Dict, List, NamedTuple, Optional, Sequence, Tuple

from ..check import lines

Shape = Tuple[int, ...]


class Site(NamedTuple):
    """A line that draws, and the number of dims of what it draws."""

    line: lines.Line
    num_dims: int


class Kind(NamedTuple):
    """How many numbers a line draws: some for each sample, along a dim, or (0 for each) as many for any batch."""

    for_each: int
    dim: int = 0


class DrawSites:
    """What is known of the lines that draw."""

    def __init__(self) -> None:
        self.known: Dict[Site, Kind] = {}
        self._heard: Optional[List[Tuple[Site, Shape]]] = None

    @property
    def is_listening(self) -> bool:
        """Whether a model is computed only to find out what it draws."""
        return self._heard is not None

    def listen(self) -> None:
        """Begin to note each draw."""
        self._heard = []

    def heard(self) -> List[Tuple[Site, Shape]]:
        """End the notes, and return them."""
        heard, self._heard = self._heard or [], None
        return heard

    def kind_of(self, shape: Sequence[int]) -> Optional[Kind]:
        """Return what is known of the line that draws now; note it, if someone listens."""
        if self._heard is None and not self.known:
            return None
        site = Site(lines.of_script(), len(shape))
        if self._heard is not None:
            self._heard.append((site, tuple(shape)))
        return self.known.get(site)

    def learn(self, every: Sequence[List[Tuple[Site, Shape]]], sizes: Sequence[int]) -> "Optional[Site]":
        """Learn from the draws for batches of several sizes; return the first line that follows no rule."""
        for site in dict.fromkeys(site for heard in every for site, _ in heard):
            shapes = [[shape for one, shape in heard if one == site] for heard in every]
            kinds = {_kind(of_sizes, sizes) for of_sizes in zip(*shapes)}  # noqa: B905
            if len({len(one) for one in shapes}) > 1 or len(kinds) != 1 or None in kinds:
                return site
            self.known[site] = next(kind for kind in kinds if kind is not None)
        return None


def _kind(shapes: Sequence[Shape], sizes: Sequence[int]) -> Optional[Kind]:
    """Return how the shape of a draw follows from the number of samples."""
    if len(set(shapes)) == 1:
        return Kind(0)
    changing = [dim for dim, of_dim in enumerate(zip(*shapes)) if len(set(of_dim)) > 1]  # noqa: B905
    for_each = shapes[0][changing[0]] // sizes[0]
    follows: Any = all(shape[changing[0]] == for_each * size for shape, size in zip(shapes, sizes))  # noqa: B905
    return Kind(for_each, changing[0]) if follows and len(changing) == 1 else None
