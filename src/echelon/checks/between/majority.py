"""Which value most nodes have, and which nodes have another."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from echelon.node.survey.nouns import Survey

Value = TypeVar("Value", bound=Hashable)


@dataclass(frozen=True)
class Majority(Generic[Value]):
    """What most nodes have; of equally many the value of the first node."""

    value: Value
    count: int
    others: list[tuple[Survey, Value]]


def majority(surveys: Sequence[Survey], part: str, read: Callable[[Survey], Value]) -> Majority[Value] | None:
    """Compare a value of all nodes whose part has answered; None where fewer than two have."""
    values = [(survey, read(survey)) for survey in surveys if part in survey.answered]
    if len(values) < 2:
        return None
    (value, count), *_ = Counter(each for _, each in values).most_common(1)
    return Majority(value, count, [(survey, each) for survey, each in values if each != value])
