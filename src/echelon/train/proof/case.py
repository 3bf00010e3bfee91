"""What is judged: one device, the same in another order, and several ranks; and the words for what is found."""

from typing import Any, Dict, NamedTuple, Optional

from .evidence import Recorded

NOT_THERE, HAS_SHAPE = "is not there", "has the shape "
Row = Dict[str, Any]


class Wrong(NamedTuple):
    """The first place where two trainings differ by more than rounding."""

    step: int
    tensor: str  # its label; empty where it is a number of the whole step
    factor: float  # 0: it is no multiple
    why: str
    meaning: str = ""


class Case(NamedTuple):
    """What was recorded of the oracle, of the oracle in another order, and of the other training."""

    one: Recorded
    again: Recorded
    ours: Recorded
    num_ranks: int
    is_own: bool  # the script distributes itself


def times(factor: float) -> str:
    """Return a factor as people read it."""
    return "%.3f" % factor if 0.01 <= abs(factor) < 1000 else "%.3g" % factor


def relative(one: Optional[float], other: Optional[float]) -> float:
    """Return how far two numbers are apart, as a part of the first."""
    if one is None or other is None:
        return 0.0 if one == other else float("inf")
    if one == other or (one != one and other != other):
        return 0.0
    apart = abs(one - other) / max(abs(one), 1e-12)
    return apart if apart == apart else float("inf")
