"""Find the value that most nodes have, and the nodes with another value."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from echelon.node.survey.nouns import Survey

Value = TypeVar("Value", bound=Hashable)


@dataclass(frozen=True)
class Majority(Generic[Value]):
    """The value that most nodes have; in a tie, the first node's value."""

    value: Value
    count: int
    others: list[tuple[Survey, Value]]


def majority(surveys: Sequence[Survey], part: str, read: Callable[[Survey], Value]) -> Majority[Value] | None:
    """Compare a value of all nodes that answered `part`; return None when fewer than two answered."""
    values = [(survey, read(survey)) for survey in surveys if part in survey.answered]
    if len(values) < 2:
        return None
    (value, count), *_ = Counter(each for _, each in values).most_common(1)
    return Majority(value, count, [(survey, each) for survey, each in values if each != value])
