"""The case to judge: the recordings of three runs, and the first difference between them."""

from typing import NamedTuple

from echelon.proof.evidence import Recording, Row

NOT_THERE, HAS_SHAPE = "is not there", "has the shape "


class Difference(NamedTuple):
    """The first place where two trainings differ by more than rounding."""

    step: int
    tensor: str  # its label; empty where a number of the whole step differs
    factor: float  # 0: no multiple
    why: str
    meaning: str = ""


class Case(NamedTuple):
    """The recordings of one device, of one device with its samples in another order, and of several ranks."""

    oracle: Recording
    reordered: Recording
    several: Recording
    num_ranks: int
    is_own: bool  # the script distributes itself
    is_synced: bool = False  # BatchNorm takes its statistics from the samples of all ranks (--sync-bn)
    is_noisy: bool = False  # on one device a sample has other values at another place of its batch

    def rows(self, step: int) -> tuple[Row, Row]:
        """Return a step, or the last one before it, of one device and of several ranks."""
        place = min(step, len(self.oracle.rows), len(self.several.rows)) - 1
        return self.oracle.rows[place], self.several.rows[place]


def times(factor: float) -> str:
    """Return a factor as people read it."""
    return f"{factor:.3f}" if 0.01 <= abs(factor) < 1000 else f"{factor:.3g}"


def relative(wanted: float | None, number: float | None) -> float:
    """Return the distance of two numbers relative to the first."""
    if wanted is None or number is None:
        return 0.0 if wanted == number else float("inf")
    if wanted == number or (wanted != wanted and number != number):
        return 0.0
    distance = abs(wanted - number) / max(abs(wanted), 1e-12)
    return distance if distance == distance else float("inf")


def on_ranks(ranks: list[int]) -> str:
    """Return ranks as people read them: "rank 0, rank 2"."""
    return ", ".join(f"rank {rank}" for rank in ranks)
