"""The state of a run as data: what `echelon watch --json` prints, and what the page in the browser draws."""

from __future__ import annotations

import math
from dataclasses import fields, is_dataclass
from functools import cache
from typing import Any

from echelon.monitor.watch.screen import mark
from echelon.monitor.watch.state import NodeState, RunState

FORMAT = 1


def as_data(state: RunState) -> dict[str, Any]:
    """Return the fields of a state, how busy each rank is, and the order in which the worst come first.

    All is JSON: a loss that is infinite or not a number is a text, "Infinity", "-Infinity" or "NaN".
    """
    places = {id(node): place for place, node in enumerate(state.nodes)}
    return {
        "format": FORMAT,
        **_fields(state, but="nodes"),
        "nodes": [_node(node) for node in state.nodes],
        "worst_first": [places[id(node)] for node in state.worst_first()],
    }


def _node(node: NodeState) -> dict[str, Any]:
    places = sorted(range(len(node.ranks)), key=lambda place: node.ranks[place].trouble)
    ranks = [{**_fields(rank), "busy": _plain(rank.busy), "mark": mark(rank)[0]} for rank in node.ranks]
    return {**_fields(node, but="ranks"), "ranks": ranks, "worst_first": places}


def _fields(value: Any, but: str = "") -> dict[str, Any]:
    kind: Any = type(value)
    return {name: _plain(getattr(value, name)) for name in _names(kind) if name != but}


@cache
def _names(kind: Any) -> tuple[str, ...]:
    return tuple(field.name for field in fields(kind))


def _plain(value: Any) -> Any:
    if value is None or isinstance(value, (str, int)):
        return value
    if isinstance(value, float):
        return _number(value)
    if isinstance(value, list):
        return [_plain(each) for each in value]
    if isinstance(value, dict):
        return {name: _plain(each) for name, each in value.items()}
    return _fields(value) if is_dataclass(value) else str(value)


def _number(value: float) -> float | str:
    """Return a number with at most ten digits, as many as a time needs, or a text for what JSON does not know."""
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "Infinity" if value > 0 else "-Infinity"
    return round(value, 1) if abs(value) >= 1e6 else float(f"{value:.5g}")
